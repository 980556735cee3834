"""Sends runs to MLflow over its REST interface. A tag identifies each run of orch on the server.

Data that is sent twice counts once, because a server with a database stores only one value for the same metric, step
and time. So the times are those in the program's metrics, and not the times of sending.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import urlencode

from orchestrator.errors import BackendError
from orchestrator.outcome.verdict import Outcome
from orchestrator.protocol.events import Snapshot, of
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import GIVEN
from orchestrator.protocol.masking import mask, masked_json
from orchestrator.runs.record import RunRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.restarts.attempts import attempts_of
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir
from orchestrator.trackers.history import MetricLine, ending_in_words, numbers_of, parameters_of, shortened
from orchestrator.trackers.progress import MLFLOW, URI, Progress, progress_of
from orchestrator.transport.http_credentials import HttpAddress, basic
from orchestrator.transport.http_request import NoAnswerError, request
from orchestrator.version import __version__

DEADLINE: Final = 60.0  # seconds for the whole answer
MOST_METRICS: Final = 500  # metrics in one request; the server accepts 1000, and at most 1 MB
MOST_PARAMETERS: Final = 100
MOST_NAME: Final = 250
_NOT_A_NAME: Final = re.compile(r"[^\w.\-/ ]")
_ID: Final = re.compile(r"[\w.-]{1,250}", re.ASCII)
_STATUS: Final = {Outcome.SUCCEEDED: "FINISHED", Outcome.FAILED: "FAILED", Outcome.CANCELLED: "KILLED"}
_PERMANENT: Final = (400, 401, 403, 404)


@dataclass(frozen=True)
class Server:
    """An MLflow server and our credentials for it. Messages contain only its `address`, which has no credentials."""

    address: str
    authorization: str = field(default="", repr=False)
    hidden: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificates: str = ""

    @staticmethod
    def from_variables(values: Mapping[str, str]) -> Server:
        """Return the server that MLflow's own environment variables describe."""
        address = HttpAddress.of(values.get(URI, ""))
        user = values.get("MLFLOW_TRACKING_USERNAME") or address.user
        password = values.get("MLFLOW_TRACKING_PASSWORD") or address.password
        token, authorization = values.get("MLFLOW_TRACKING_TOKEN", ""), ""
        if user:
            authorization = basic(user, password)
        elif token:
            authorization = f"Bearer {token}"
        return Server(
            address.url.rstrip("/"), authorization, {"password": password, "token": token},
            values.get("MLFLOW_TRACKING_SERVER_CERT_PATH", ""),
        )  # fmt: skip

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a POST request with a JSON body or, without a body, a GET request. Return the JSON object in the answer.

        Raises RefusalError if the status is 300 or more, and BackendError for other failures. The error is marked as
        transient if a later request may succeed.
        """
        headers = {"User-Agent": f"orch/{__version__}", "Content-Type": "application/json"}
        if self.authorization:
            headers["Authorization"] = self.authorization
        data = json.dumps(body).encode() if body is not None else None
        url, where = f"{self.address}/api/2.0/mlflow/{path}", f"MLflow at {self.address}"
        try:
            found = request(url, data, headers, seconds=DEADLINE, certificates=self.certificates)
        except NoAnswerError as error:
            raise BackendError(f"{where} {error}", transient=True) from None
        if found.status >= 300:
            raise RefusalError(f"{where} answered {found.status}{self._message_in(found.body)}", found.status)
        try:
            answer = parse_json(found.body or b"{}")
        except ValueError:
            raise BackendError(
                f"{where} gave an answer that is not JSON: is it an MLflow server?", transient=True
            ) from None
        if not isinstance(answer, dict):
            raise self.not_mlflow()
        return answer

    def not_mlflow(self) -> BackendError:
        """Return the error for an answer that is not in MLflow's form."""
        what = f"the server at {self.address} does not answer like MLflow"
        return BackendError(what, f"is {URI} the address of an MLflow server?")

    def _message_in(self, body: bytes) -> str:
        """Return the error message in the server's answer, without our credentials."""
        try:
            message = str(parse_json(body)["message"])
        except (ValueError, TypeError, KeyError, IndexError):
            message = body.decode("utf-8", "replace")
        words = " ".join(message.split())
        return f": {mask(words, self.hidden)[:300]}" if words and not words.startswith("<") else ""


class RefusalError(BackendError):
    """The server answered with a status of 300 or more."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, transient=code not in _PERMANENT)
        self.code = code


class Mlflow:
    """The tracker that sends a run to an MLflow server."""

    def __init__(self, run: RunDir, record: RunRecord, variables: Mapping[str, str], redact: Redaction) -> None:
        self.run, self.record, self.redact = run, record, redact
        self.server = Server.from_variables(variables)
        self.experiment = redact.known(variables.get("MLFLOW_EXPERIMENT_NAME") or record.name)

    def begin(self, progress: Progress) -> Progress:
        """Create the run on the server, or find it if a killed supervisor has created it already. Send the run's
        parameters.
        """
        experiment = self._experiment_id()
        run_id = self._found(experiment) or self._created(experiment)
        # a dict, because two names may become equal
        named = {_name(name): value for name, value in parameters_of(self.record, self.redact).items()}
        values = [{"key": name, "value": value} for name, value in named.items()]
        for first in range(0, len(values), MOST_PARAMETERS):
            part = values[first : first + MOST_PARAMETERS]
            self._post("runs/log-batch", {"run_id": run_id, "params": part})
        link = f"{self.server.address}/#/experiments/{experiment}/runs/{run_id}"
        return replace(progress, is_begun=True, id=run_id, link=link)

    def send(self, progress: Progress, lines: Iterable[MetricLine]) -> Progress:
        """Send these metrics with their steps and times."""
        metrics = []
        for line in lines:
            metrics += self._metrics(line.values, line.step, line.time)
            progress = replace(progress, attempt=max(line.attempt, progress.attempt), step=line.step)
        for first in range(0, len(metrics), MOST_METRICS):
            part = metrics[first : first + MOST_METRICS]
            self._post("runs/log-batch", {"run_id": progress.id, "metrics": part})
        return progress

    def end(self, progress: Progress, ending: Ending, result: Mapping[str, object]) -> Progress:
        """Send the numbers of the result and how the run ended."""
        ended = ending.ended or self.record.created
        metrics = self._metrics(numbers_of(result, self.redact, "result/"), progress.step, ended)
        resumed = {"resumed_from": before} if (before := self._resumed_from()) else {}
        words = {**ending_in_words(ending, self.redact), **resumed}
        tags = [{"key": f"orch.{name}", "value": value} for name, value in words.items()]
        self._post("runs/log-batch", {"run_id": progress.id, "metrics": metrics[:MOST_METRICS], "tags": tags})
        status = _STATUS[ending.verdict.outcome]
        self._post("runs/update", {"run_id": progress.id, "status": status, "end_time": _milliseconds(ended)})
        return progress

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a document to the server, after masking all secrets in it."""
        return self.server.call(path, masked_json(dict(body), self.redact.known))

    def _metrics(self, values: Mapping[str, float], step: int, time: float) -> list[dict[str, Any]]:
        moment = _milliseconds(time or self.record.created)
        return [
            {"key": _name(name), "value": value, "step": step, "timestamp": moment} for name, value in values.items()
        ]

    def _experiment_id(self) -> str:
        """Return the id of the experiment. If the experiment does not exist, create it."""
        query = urlencode({"experiment_name": self.experiment})
        try:
            found = self.server.call(f"experiments/get-by-name?{query}")
        except RefusalError as error:
            if error.code != 404:
                raise
        else:
            return self._id(found, "experiment", "experiment_id")
        return self._id(self._post("experiments/create", {"name": self.experiment}), "experiment_id")

    def _found(self, experiment: str) -> str:
        """Return the server's id of this run, or "" if the server does not have the run."""
        body = {"experiment_ids": [experiment], "filter": f"tags.`orch.run_id` = '{self.run.run_id}'", "max_results": 1}
        runs = self._post("runs/search", body).get("runs") or []
        return self._id(runs, 0, "info", "run_id") if runs else ""

    def _created(self, experiment: str) -> str:
        tags = {"mlflow.runName": self.run.run_id, "mlflow.user": getpass.getuser(), "orch.run_id": self.run.run_id,
                "mlflow.source.type": "JOB", "orch.profile": self.record.profile_name}  # fmt: skip
        if self.record.job_file:
            tags["mlflow.source.name"] = PurePath(self.record.job_file).name
        commits = [each.git for each in of(self.run.events(), Snapshot)]
        if commits and commits[-1] is not None:
            tags["mlflow.source.git.commit"] = commits[-1]
        if before := self._given_run():
            tags |= {"orch.offered_from": before.run_id}  # it is not known yet whether the run loads that checkpoint
            if parent := progress_of(before, MLFLOW).id:
                tags["mlflow.parentRunId"] = parent
        body = {
            "experiment_id": experiment, "start_time": _milliseconds(self.record.created),
            "run_name": self.run.run_id,
            "tags": [{"key": key, "value": shortened(value)} for key, value in tags.items()],
        }  # fmt: skip
        return self._id(self._post("runs/create", body), "run", "info", "run_id")

    def _resumed_from(self) -> str:
        """Return the id of the run whose checkpoint this run has loaded, or "" if no loading is recorded."""
        before = self._given_run()
        if before is None:
            return ""
        loaded = [each.resumed_from or "" for each in attempts_of(self.run.events())]
        return before.run_id if any(name.startswith(f"{GIVEN}/") for name in loaded) else ""

    def _given_run(self) -> RunDir | None:
        """Return the run whose checkpoint the job names in `checkpoint.resume`, or None if there is no such run."""
        path = PurePath(self.record.job.checkpoint.resume)
        runs = self.run.path.parent
        if not path.is_relative_to(runs) or path == runs:
            return None
        return RunDir(runs / path.relative_to(runs).parts[0])

    def _id(self, answer: Any, *keys: str | int) -> str:
        """Return the id at the path `keys` in an answer. Raises BackendError if the answer has no id."""
        try:
            for key in keys:
                answer = answer[key]
        except (KeyError, TypeError, IndexError):
            raise self.server.not_mlflow() from None
        if not isinstance(answer, str | int) or not _ID.fullmatch(str(answer)):
            raise self.server.not_mlflow()
        return str(answer)


def _name(name: str) -> str:
    """Return a name in a form that the server accepts: other characters become _, and empty parts of the path are
    left out.
    """
    parts = _NOT_A_NAME.sub("_", name)[:MOST_NAME].split("/")
    return "/".join(part for part in parts if part.strip(". ")).strip(". ") or "_"


def _milliseconds(time: float) -> int:
    return int(time * 1000)
