"""Parses the output of qstat and qsub of OpenPBS and PBS Professional, and describes each state and end in a sentence.
This module has no side effects.

In orch, a job's number is 17, or 17_3 for the subjob that PBS calls 17[3].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.backends.batch.qsub import QsubJob, by_signal
from orchestrator.errors import BackendError
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.job_use import JobUse

JOB_ID: Final = re.compile(r"(\d+)(?:\[(\d*)\])?(?:\..*)?")
WAITING: Final = {
    "Q": "the scheduler has not found a place for it yet",
    "H": "it is held: qrls lets it go, unless it waits for another job",
    "W": "it waits for its time",
    "T": "it is on its way to another server",
    "M": "it was moved to another server",
}
FINISHED: Final = ("F", "X")
ENVIRONMENT: Final = re.compile(
    r'"(Variable_List|Submit_arguments)":\s*(\{.*?\n\s*\}|"(?:[^"\\\n]|\\.)*"),?', re.DOTALL
)
BY_SIGNAL: Final = 256  # added to the number of the signal that ended the script
# PBS records these exit codes if it ends a job itself: (the state here, the sentence)
ENDS: Final = {
    -29: ("limit", "its time limit was reached"),
    -28: ("limit", "its limit of CPU time was reached"),
    -27: ("memory", "it used more memory than it had asked for"),
    -26: ("memory", "it used more virtual memory than it had asked for"),
    -14: ("lost", "one of its hosts failed"),
    -11: ("lost", "PBS stopped it and could not start it again"),
    -2: ("start", "its first host could not start it"),
    -1: ("start", "its first host could not start it"),
}
TERMINATED: Final = 91  # the substate of a job that somebody has deleted
REASONS: Final = (
    (r"Insufficient amount of (server |queue )?resource", "fewer hosts are free than it asks for"),
    (r"Not enough (free )?nodes|Host set host=\S+ has too few|No available resources", "too few hosts are free"),
    (r"would exceed .* limit|has reached .* limit|exceed.*run limit", "a limit of yours or of the queue is reached"),
    (r"Can Never Run", "no host has what it asks for"),
    (r"Queue not started|not an execution queue", "the queue starts no jobs now"),
    (r"depend", "it waits for another job"),
)  # fmt: skip
STUCK: Final = "no host has what it asks for"
UNREACHABLE: Final = ("cannot connect to server", "Connection refused", "pbs_connect", "Communication failure",
                      "No route to host")  # fmt: skip
UNANSWERED: Final = ("End of File", "Premature end of message", "timed out")


@dataclass(frozen=True)
class JobLine(QsubJob):
    """One job in the output of qstat."""

    substate: int = 0
    runs: int = 0  # how often PBS has started it

    @property
    def phase(self) -> str:
        if self.state in (*FINISHED, "forgotten"):
            return "ended"
        return "waiting" if self.state in WAITING else "active"

    @property
    def is_stuck(self) -> bool:
        return self.phase == "waiting" and self.reason.startswith(STUCK)

    @property
    def is_suspended(self) -> bool:
        return self.state in ("S", "U")

    @property
    def is_deferred(self) -> bool:
        return self.phase == "waiting" and self.runs > 0

    @property
    def end(self) -> str:
        """Return how the job ended: done, failed, killed, deleted, forgotten, or a state in ENDS."""
        if self.state == "forgotten":
            return "forgotten"
        if self.substate == TERMINATED:
            return "deleted"
        if self.code in ENDS:
            return ENDS[self.code][0]
        return "done" if not self.code else "killed" if self.code > BY_SIGNAL else "failed"

    def why_it_waits(self, *, has_run: bool = False) -> str:
        said = self.reason or ("requeued" if self.is_deferred else WAITING.get(self.state, "PBS holds it back"))
        when = f"; may start at {self.start}" if self.start else ""
        return f"PBS job {self.job_id} pending: {said}{when} ({self.state})"

    def how_it_ended(self, user: str = "") -> str:
        sentence = {
            "done": "the job is over",
            "failed": f"its batch script failed with exit code {self.code}",
            "killed": f"its batch script was killed{by_signal(self.code, BY_SIGNAL)}",
            "deleted": "it was deleted (qdel)",
            "forgotten": "PBS does not know it any more, and has no record of its end",
        }.get(self.end) or ENDS[self.code or 0][1]
        return f"PBS job {self.job_id}: {sentence}"


def own_number(job_id: str) -> str:
    """Return the identifier that PBS uses for a job or subjob, without the server's name. PBS adds the default
    server.
    """
    number, _, task = job_id.partition("_")
    return f"{number}[{task}]" if task else number


def number_of(identifier: str) -> str:
    """Return orch's number of a job, from PBS's `17.server` or `17[3].server`; "" for any other form."""
    match = JOB_ID.fullmatch(identifier.strip())
    return "" if match is None else f"{match[1]}_{match[2]}" if match[2] else match[1]


def parse_qstat(text: str) -> list[JobLine]:
    """Return the jobs in the output of `qstat -t -f -F json`, without the entries for whole arrays."""
    return [job for job, _ in _jobs(text)]


def _jobs(text: str) -> list[tuple[JobLine, Mapping[str, Any]]]:
    """Return the jobs in the output of qstat, with all of their fields."""
    return [
        (_job(number, entry), entry)
        for identifier, entry in shown(text, "Jobs").items()
        if (number := number_of(identifier)) and "[]" not in identifier
    ]


def shown(text: str, what: str) -> dict[str, Mapping[str, Any]]:
    """Return the entries of one kind (Jobs, Queue, Server, nodes) that a program prints as JSON, by their names.

    PBS does not escape a job's environment, so one shell function in it makes the whole output unreadable (issues 1255
    and 2541 of OpenPBS). The environment is left out first. Raises a transient BackendError if the rest can't be read,
    because an output that can't be read says nothing about a job.
    """
    if not text.strip():
        return {}
    try:
        found = parse_json(re.sub(r",(\s*\})", r"\1", ENVIRONMENT.sub("", text))).get(what, {})
    except (ValueError, AttributeError) as error:
        raise BackendError("PBS printed JSON that can't be parsed", transient=True) from error
    entries = found.items() if isinstance(found, dict) else ()
    return {name: entry for name, entry in entries if isinstance(entry, dict)}


def _job(number: str, entry: Mapping[str, Any]) -> JobLine:
    hosts = dict.fromkeys(part.partition("/")[0] for part in str(entry.get("exec_host", "")).split("+"))
    estimate = entry.get("estimated")
    start = estimate.get("start_time", "") if isinstance(estimate, dict) else ""
    return JobLine(
        number, str(entry.get("job_state", "")), str(entry.get("Job_Name", "")),
        reason_of(str(entry.get("comment", ""))), str(start), ",".join(hosts), code=_whole(entry.get("Exit_status")),
        substate=_whole(entry.get("substate")) or 0, runs=_whole(entry.get("run_count")) or 0,
    )  # fmt: skip


def reason_of(comment: str) -> str:
    """Return a sentence for the scheduler's comment on a waiting job; "" without a comment."""
    said = comment.strip()
    known = next((sentence for pattern, sentence in REASONS if re.search(pattern, said)), "")
    return f"{known} ({said})" if known else said


def parse_use(text: str, name: str) -> JobUse | None:
    """Return the resources that a job has used so far; None if the output has no job of this name."""
    for job, entry in _jobs(text):
        if job.name == name:
            used, given = (_table(entry.get(field)) for field in ("resources_used", "Resource_List"))
            return JobUse(
                job.job_id, job.state, seconds_in(used.get("walltime")) or 0.0, seconds_in(given.get("walltime")),
                _whole(given.get("ncpus")) or 0, seconds_in(used.get("cput")), bytes_in(used.get("mem")),
                bytes_in(given.get("mem")),
            )  # fmt: skip
    return None


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    """Return a whole number, which some versions of PBS print as text; None for any other value."""
    return int(value) if re.fullmatch(r"-?\d{1,9}", str(value)) else None


def seconds_in(text: Any) -> float | None:
    """Return the seconds of `01:02:03`; None for any other text."""
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d)", str(text))
    return 3600.0 * int(match[1]) + 60.0 * int(match[2]) + float(match[3]) if match else None


def bytes_in(text: Any) -> int | None:
    """Return the bytes of `1024kb` or `4gb`; None for any other text."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b", str(text).lower())
    return int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else None
