"""orch from Python: start runs, wait for them, read their results, and call a function on every rank of a cluster.

    import orchestrator as orch

    run = orch.submit("job.yaml", "lab", sets={"job.training.lr": 0.1})
    for line in run.logs():
        print(line)
    print(run.result())

All calls block, and no call prints anything. The module starts no event loop and sets no signal handler, so it works in
notebooks and threads, and in coroutines through `asyncio.to_thread`. Errors are `errors.OrchError`, each with a
message and a hint. A run continues after this process has ended and while this machine is off; `find` returns it
again.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import EXIT_NOT_FINISHED, EXIT_RUN_FAILED, OrchError, UsageError
from orchestrator.looking import run as looking
from orchestrator.looking.state import state_of
from orchestrator.outcome.verdict import Verdict
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.files.logs import Selection, Tail, result_of
from orchestrator.runs.labels import change_tags, labels_of, set_note
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, find_run, newest_runs, state_root
from orchestrator.supervisor.background import attend

if TYPE_CHECKING:  # reading runs must load neither pydantic nor modules that only submitting needs
    from orchestrator.backends.base import NodeProof
    from orchestrator.operations.pull import Pulled
    from orchestrator.prepare.prepare import Prepared
    from orchestrator.runs.files.checkpoints import Checkpoint
    from orchestrator.runs.files.outputs import Output


class RunFailedError(OrchError):
    """A run did not succeed.

    `verdict` has the outcome and the reason; its `error` has the traceback of the first rank that failed.
    """

    exit_code = EXIT_RUN_FAILED

    def __init__(self, run_id: str, verdict: Verdict) -> None:
        self.run_id, self.verdict = run_id, verdict
        how = "was cancelled" if verdict.outcome == "cancelled" else "failed"
        super().__init__(": ".join(filter(None, [f"run {run_id} {how}", verdict.reason])), verdict.hint)

    def __str__(self) -> str:
        """Return the message, the hint, and the failed rank's traceback or last lines."""
        said = str((self.verdict.error or {}).get("traceback") or "\n".join(self.verdict.tail)).strip()
        return f"{super().__str__()}\n\n{said}" if said else super().__str__()


class WaitTimeoutError(OrchError, TimeoutError):
    """The run had not ended when the timeout expired. The run continues, and can be waited for again."""

    exit_code = EXIT_NOT_FINISHED


@dataclass(frozen=True)
class Run:
    """A submitted run, which any process may have started. The object reads the run's folder at each call."""

    folder: Path

    @property
    def id(self) -> str:
        """The run's id, which `orch status` shows and `find` accepts."""
        return self._dir.run_id

    @property
    def verdict(self) -> Verdict | None:
        """The outcome of the run and its reason, or None as long as the run has not ended."""
        return self.status().verdict

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def status(self) -> RunState:
        """Return the run's present `state`, nodes, attempt, restarts and verdict.

        Raises StoreError if the run's folder can't be read.
        """
        attend(self._root)
        return state_of(self._dir)

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until the run has ended, with any outcome, and return the run itself.

        Raises WaitTimeoutError (a TimeoutError) after `timeout` seconds; the run continues.
        """
        attend(self._root)
        state = looking.wait(self._dir, timeout=timeout)
        if not state.is_final:
            said = f"run {self.id} is {state.state} after {timeout:g} s"
            hint = "the run continues: wait again, or cancel the run"
            raise WaitTimeoutError(": ".join(filter(None, [said, state.detail])), hint)
        return self

    def result(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Wait for the run's end and return the result that its program wrote, or None if it wrote none.

        Raises RunFailedError, with the verdict, if the run failed or was cancelled, and WaitTimeoutError as `wait`
        does.
        """
        self._succeeded(timeout)
        return result_of(self._dir)

    def logs(self, rank: int = 0, *, follow: bool = True) -> Iterator[str]:
        """Yield the lines that a rank printed in all attempts, without their line ends.

        With `follow`, lines are yielded as they are printed, until the run has ended. Without it, only the lines that
        were printed so far are yielded.
        """
        attend(self._root)
        selection = Selection(rank)
        reader = Tail(self._dir, selection)
        with looking.bringing_logs(self._dir, selection):
            for state in looking.states(self._dir) if follow else ():
                for _, line in reader.read(ended=state.is_final):
                    yield line
        if not follow:
            for _, line in reader.read(ended=True):
                yield line

    def cancel(self, *, now: bool = False) -> tuple[NodeProof, ...]:
        """Stop the run at its next step boundary, with a checkpoint, and wait until it has ended. With `now`, stop at
        once.

        The wait takes little longer than `limits.grace`. If the process that starts the run is still waiting for a
        machine, the run may not have ended by then.

        Return a check of each node: `survivors` are processes that could not be ended, and `is_unreachable` is True if
        the node could not be checked. The result is empty if the run had ended before.
        """
        from orchestrator.operations.runs import cancel

        attend(self._root)
        return cancel(self._root, self._dir, now=now).proofs

    def checkpoints(self, *, verify: bool = False) -> list[Checkpoint]:
        """Return the run's checkpoints that are on this machine, oldest first, each with `is_whole`.

        With `verify` all bytes are read and compared with their hashes. Without it only sizes are compared.
        """
        from orchestrator.runs.files.checkpoints import all_of

        return all_of(self._dir, verify=verify)

    def outputs(self) -> list[Output]:
        """Return the run's output files that are on this machine, sorted by path."""
        from orchestrator.runs.files.outputs import outputs_of

        return list(outputs_of(self._dir))

    def pull(self, to: str | os.PathLike[str], *, checkpoint: str | int = "latest") -> Pulled:
        """Copy the logs, metrics, result and a checkpoint to a folder, verify them, and return the copied files.

        A repeated call copies only new content. `checkpoint` is latest, best, none or a step. Raises UsageError if the
        folder has other files, or if the run has no such checkpoint.
        """
        from orchestrator.operations.pull import pull

        return pull(self._dir, Path(to), str(checkpoint))

    @property
    def tags(self) -> tuple[str, ...]:
        """The run's tags."""
        return labels_of(self._dir).tags

    @property
    def note(self) -> str:
        """The run's note; empty if it has none."""
        return labels_of(self._dir).note

    def tag(self, *add: str, remove: Iterable[str] = ()) -> tuple[str, ...]:
        """Add tags, remove the tags in `remove`, and return the run's tags. Raises UsageError for an invalid tag."""
        return change_tags(self._dir, add, remove).tags

    def set_note(self, text: str) -> None:
        """Replace the run's note. An empty text removes the note. Raises UsageError if the text can't be a note."""
        set_note(self._dir, text)

    @property
    def _dir(self) -> RunDir:
        return RunDir(self.folder)

    @property
    def _root(self) -> Path:
        return self.folder.parent.parent

    def _succeeded(self, timeout: float | None = None) -> RunState:
        """Wait for the run, and return its state if it succeeded. Raises RunFailedError otherwise."""
        state = self.wait(timeout).status()
        assert state.verdict is not None
        if state.state != "succeeded":
            raise RunFailedError(self.id, state.verdict)
        return state


def submit(
    job: str | os.PathLike[str] | Mapping[str, Any],
    profile: str | os.PathLike[str],
    *,
    sets: Mapping[str, Any] | None = None,
    env: Mapping[str, str | None] | None = None,
    nodes: int | None = None,
    nproc_per_node: int | str | None = None,
    name: str | None = None,
    resume: str | Run | None = None,
    after: str | Run | None = None,
    rehearse: bool = False,
    no_wait: bool = False,
) -> Run:
    """Start a run, as `orch submit` does, and return it as soon as its agents are being started.

    `job` is a YAML file, the name of a shipped job, or a mapping of a job's fields, whose code is the current folder.
    `profile` is a name or a file. `sets` overrides fields of both (`{"job.training.lr": 0.1}`). `env` sets variables. A
    variable that is None gets this process's own value. With `resume`, the run starts from the newest checkpoint of the
    run that `resume` names. With `after`, the run starts only when the run that `after` names has succeeded or, for
    "RUN:any", has ended. If other runs hold the GPUs of the hosts, the run waits in their queue. With `no_wait`, it is
    refused instead.

    Raises SpecError (with file, line and column) or UsageError before anything is started, and BackendError if a
    machine or a scheduler refuses.
    """
    from orchestrator.operations.submission.submit import submit as start
    from orchestrator.prepare.prepare import Request, prepare
    from orchestrator.specs.documents.loader import document_of
    from orchestrator.specs.documents.yaml_source import Document

    root = state_root()
    if isinstance(job, Mapping):
        what: str | Document = document_of(parse_json(_yaml("job", dict(job))), Path.cwd(), "job")
    else:
        what = os.fspath(job)
    request = Request(
        job=what,
        profile=os.fspath(profile),
        sets=tuple(f"{field}={_yaml(f'sets: {field}', value)}" for field, value in (sets or {}).items()),
        flags={"job.name": name, "profile.nodes": nodes, "profile.nproc_per_node": nproc_per_node},
        env=tuple(each if value is None else f"{each}={value}" for each, value in (env or {}).items()),
        resume=_id(resume),
        rehearse=rehearse,
        waits=not no_wait,
        after=_id(after),
    )
    prepared = prepare(root, request)
    _refuse_delegated(prepared)
    return Run(start(root, prepared).path)


def find(ref: str) -> Run:
    """Return the run with this id or unique prefix, or "last".

    Raises RunNotFoundError if no run or several runs match.
    """
    return Run(find_run(state_root(), ref).path)


def list_runs(limit: int | None = 20) -> list[Run]:
    """Return the newest runs, newest first, including runs of sweeps. If `limit` is None, return all runs."""
    return [Run(run.path) for run in newest_runs(state_root(), limit)]


def launch(
    function: Callable[..., Any],
    *args: Any,
    profile: str | os.PathLike[str] = "local",
    nodes: int | None = None,
    nproc_per_node: int | str | None = None,
    sets: Mapping[str, Any] | None = None,
    env: Mapping[str, str | None] | None = None,
    name: str | None = None,
    log: Callable[[str], object] | None = None,
) -> list[Any]:
    """Start a run that calls `function(*args)` on every rank, and return the ranks' results in the order of ranks.

    Each rank has torchrun's variables, so the function can call `init_process_group()`. The function may be defined in
    a notebook. cloudpickle pickles the function with its arguments and with the code of your own modules that it uses.
    Installed packages that it uses must be installed on the nodes too. Pass keyword arguments by `functools.partial`.

    The pickled file is sent with the run's code, over the same authenticated connection and into the same private
    folder, so a rank that loads it runs only your own program. Results are never unpickled: a result is JSON (tuples
    become lists) or, if it has tensors, a file of torch that is read with `weights_only`.

    `log` is called with each line that rank 0 prints. Ctrl-C cancels the run.

    Raises UsageError, before anything is started, if the function can't be pickled. Raises RunFailedError if a rank
    raises (with its traceback), if the nodes' Python has another minor version (exit code 93), or if a rank returns
    anything but numbers, text, lists, dicts and tensors.
    """
    from orchestrator.operations.submission.launch import results, write_job

    with tempfile.TemporaryDirectory(prefix="orch-launch-") as folder:
        job = write_job(Path(folder), function, args)
        run = submit(job, profile, sets=sets, env=env, nodes=nodes, nproc_per_node=nproc_per_node, name=name)
    try:
        if log is not None:
            for line in run.logs():
                log(line)
        state = run._succeeded()
    except RunFailedError:
        raise
    except BaseException:
        with contextlib.suppress(OrchError):  # report the error that ended the wait, and not an error of the cancel
            run.cancel(now=True)
        raise
    return results(RunDir(run.folder), state)


def _id(run: str | Run | None) -> str | None:
    return run.id if isinstance(run, Run) else run


def _yaml(field: str, value: Any) -> str:
    """Return the value in the form that `--set` accepts. It is JSON, which is also YAML."""
    try:
        return json.dumps(value, ensure_ascii=False, default=os.fspath)
    except TypeError as error:
        raise UsageError(
            f"{field} is a {type(value).__name__}, which a job or a profile can't hold: {error}",
            "only numbers, strings, paths, lists and dicts can be given",
        ) from error


def _refuse_delegated(prepared: Prepared) -> None:
    if prepared.is_delegated:
        host = getattr(prepared.profile, "supervisor", "another machine")
        raise UsageError(
            f"{host} supervises the runs of profile {prepared.profile.name}, so orch's Python API on this "
            "machine can't see them",
            'submit the run with orch submit, or pass sets={"profile.supervisor": "here"}',
        )
