"""orch from Python: start runs, wait for them, read what they left; and call a function on every rank of a cluster.

    import orchestrator as orch

    run = orch.submit("job.yaml", "lab", sets={"job.training.lr": 0.1})
    for line in run.logs():
        print(line)
    print(run.result())

Everything blocks and nothing prints. No event loop and no signal handler is set up, so that it works in a notebook, in
a thread, and in a coroutine (there by `asyncio.to_thread`, which keeps the loop going). What goes wrong is an
`errors.OrchError`: a sentence with a hint. A run needs neither this process nor this machine's patience: it goes on
when both are gone, and `find` has it again.
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
from orchestrator.operations import runs as operations
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.files.logs import Selection, Tail, result_of
from orchestrator.runs.labels import change_tags, labels_of, set_note
from orchestrator.runs.state import RunState, Verdict
from orchestrator.runs.store import RunDir, find_run, newest_runs, state_root
from orchestrator.supervisor.reconcile import state_of
from orchestrator.supervisor.start import attend

if TYPE_CHECKING:  # who only looks at runs waits neither for pydantic nor for what a submit needs
    from orchestrator.backends.base import NodeProof
    from orchestrator.operations.pull import Pulled
    from orchestrator.prepare.prepare import Prepared
    from orchestrator.runs.files.checkpoints import Checkpoint
    from orchestrator.runs.files.outputs import Output


class RunFailedError(OrchError):
    """A run did not succeed; `verdict` says how it ended and why, with the first failed rank's traceback in `error`."""

    exit_code = EXIT_RUN_FAILED

    def __init__(self, run_id: str, verdict: Verdict) -> None:
        self.run_id, self.verdict = run_id, verdict
        how = "was cancelled" if verdict.outcome == "cancelled" else "failed"
        super().__init__(": ".join(filter(None, [f"run {run_id} {how}", verdict.reason])), verdict.hint)

    def __str__(self) -> str:
        """The sentence, the hint, and what the failed rank had to say."""
        said = str((self.verdict.error or {}).get("traceback") or "\n".join(self.verdict.tail)).strip()
        return f"{super().__str__()}\n\n{said}" if said else super().__str__()


class WaitTimeoutError(OrchError, TimeoutError):
    """A run had not ended when the time was up; it goes on, and can be waited for again."""

    exit_code = EXIT_NOT_FINISHED


@dataclass(frozen=True)
class Run:
    """A run that was submitted, by whomever; it holds nothing but its folder, and asks that each time."""

    folder: Path

    @property
    def id(self) -> str:
        """The run's id: what `orch status` shows, and `find` takes."""
        return self._dir.run_id

    @property
    def verdict(self) -> Verdict | None:
        """How the run ended and why; None while it goes on."""
        return self.status().verdict

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def status(self) -> RunState:
        """The run as it is now: its `state`, nodes, attempt, restarts, verdict.

        Raises StoreError when its folder can't be read.
        """
        attend(self._root)
        return state_of(self._dir)

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until the run has ended, however it did, and return the run itself.

        Raises WaitTimeoutError (a TimeoutError) after `timeout` seconds; the run goes on.
        """
        attend(self._root)
        state = operations.wait(self._dir, timeout=timeout)
        if not state.is_final:
            said = f"run {self.id} is {state.state} after {timeout:g} s"
            hint = "it goes on: wait again, or cancel it"
            raise WaitTimeoutError(": ".join(filter(None, [said, state.detail])), hint)
        return self

    def result(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Wait for the run's end and return what its program wrote as its result; None where it wrote none.

        Raises RunFailedError, with the verdict, when the run failed or was cancelled; WaitTimeoutError as `wait` does.
        """
        self._succeeded(timeout)
        return result_of(self._dir)

    def logs(self, rank: int = 0, *, follow: bool = True) -> Iterator[str]:
        """The lines that a rank has printed, of all attempts, without their ends.

        With `follow` they come as they are printed, until the run has ended; else those that are there now.
        """
        attend(self._root)
        selection = Selection(rank)
        reader = Tail(self._dir, selection)
        with operations.bringing_logs(self._dir, selection):
            for state in operations.states(self._dir) if follow else ():
                for _, line in reader.read(ended=state.is_final):
                    yield line
        if not follow:
            for _, line in reader.read(ended=True):
                yield line

    def cancel(self, *, now: bool = False) -> tuple[NodeProof, ...]:
        """Stop the run at its next step boundary, with a checkpoint, or at once; wait until it has ended.

        That wait is little more than limits.grace: a run whose submit still waits for a machine may go on. Returns what
        a look at each node found afterwards: `survivors` that could not be ended, `is_unreachable` where the node could
        not be looked at. Empty where the run had ended before.
        """
        attend(self._root)
        return operations.cancel(self._root, self._dir, now=now).proofs

    def checkpoints(self, *, verify: bool = False) -> list[Checkpoint]:
        """The run's checkpoints that are here, oldest first, each with its verdict (`is_whole`).

        With `verify` every byte is read and held against its hash, else sizes must do.
        """
        from orchestrator.runs.files.checkpoints import all_of  # noqa: PLC0415 (next to its only use)

        return all_of(self._dir, verify=verify)

    def outputs(self) -> list[Output]:
        """The files that the run has written and that are here, by their paths."""
        from orchestrator.runs.files.outputs import outputs_of  # noqa: PLC0415 (next to its only use)

        return list(outputs_of(self._dir))

    def pull(self, to: str | os.PathLike[str], *, checkpoint: str | int = "latest") -> Pulled:
        """Copy the logs, metrics, result and a checkpoint to a folder, verified; again, it copies only what is new.

        `checkpoint` is latest, best, none or a step. Returns what was copied. Raises UsageError where the folder holds
        something else, or the run has no such checkpoint.
        """
        from orchestrator.operations.pull import pull  # noqa: PLC0415 (next to its only use)

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
        """Add tags and remove others; return the run's tags. Raises UsageError for a word that can't be a tag."""
        return change_tags(self._dir, add, remove).tags

    def set_note(self, text: str) -> None:
        """Replace the run's note; an empty text removes it. Raises UsageError if the text can't be a note."""
        set_note(self._dir, text)

    @property
    def _dir(self) -> RunDir:
        return RunDir(self.folder)

    @property
    def _root(self) -> Path:
        return self.folder.parent.parent

    def _succeeded(self, timeout: float | None = None) -> RunState:
        """The state of the run once it has succeeded; RunFailedError where it has not."""
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
    """Start a run, as `orch submit` does, and return it when its agents are on their way.

    `job` is a YAML file, a shipped job's name, or the fields of a job (its code is then the current folder), `profile`
    a name or a file. `sets` lays values over fields of either (`{"job.training.lr": 0.1}`), `env` gives variables
    (None: this process's own value). `resume` is a run from whose newest checkpoint this one starts, `after` one that
    has to succeed first ("RUN:any": to end). Where others hold the GPUs of its hosts, the run waits in the queue for
    them; with `no_wait` it is refused.

    Raises SpecError (file, line and column) or UsageError before anything is started, BackendError when a machine or a
    scheduler refuses.
    """
    from orchestrator.operations.submission.submit import submit as start  # noqa: PLC0415 (looking at runs needs none of it)
    from orchestrator.prepare.prepare import Request, prepare  # noqa: PLC0415 (as above)
    from orchestrator.specs.documents.loader import Document, document_of  # noqa: PLC0415 (as above)

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
    """The run with this id, a unique prefix of it, or "last"; RunNotFoundError where there is none, or several."""
    return Run(find_run(state_root(), ref).path)


def list_runs(limit: int | None = 20) -> list[Run]:
    """The newest runs, newest first, the runs of sweeps among them; all of them where `limit` is None."""
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
    """Call `function(*args)` on every rank of a profile, as a run, and return what the ranks returned, by rank.

    Each rank has torchrun's variables, so that the function can call `init_process_group()`. It may have been typed
    into a notebook: it is pickled by cloudpickle with its arguments and with all that it uses of your own modules;
    what is installed here must be installed there. Keyword arguments go in by `functools.partial`. The pickled file
    travels with the run's code, over the same authenticated connection and into the same private folder: a rank that
    loads it runs your own program, which is what it was started for. The other way nothing is unpickled: a result is
    JSON (tuples come back as lists), or where there are tensors in it a file of torch's, read with `weights_only`.

    `log` is called with each line that rank 0 prints. Ctrl-C cancels the run.

    Raises UsageError, before anything is started, for what can't be pickled. Raises RunFailedError when a rank raises,
    with its traceback; when the nodes' Python is of another minor version (exit code 93); and when a rank returns
    something else than numbers, text, lists, dicts and tensors.
    """
    from orchestrator.operations.submission.launch import results, write_job  # noqa: PLC0415 (looking at runs needs none of it)

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
        with contextlib.suppress(OrchError):  # what stopped the waiting is what has to be told
            run.cancel(now=True)
        raise
    return results(RunDir(run.folder), state)


def _id(run: str | Run | None) -> str | None:
    return run.id if isinstance(run, Run) else run


def _yaml(field: str, value: Any) -> str:
    """The value as `--set` takes it: JSON is YAML."""
    try:
        return json.dumps(value, ensure_ascii=False, default=os.fspath)
    except TypeError as error:
        raise UsageError(
            f"{field} is a {type(value).__name__}, which a job or a profile can't hold: {error}",
            "give numbers, text, paths, lists and dicts",
        ) from error


def _refuse_delegated(prepared: Prepared) -> None:
    from orchestrator.operations.submission.delegate import is_elsewhere  # noqa: PLC0415 (only a submit asks)

    if is_elsewhere(prepared):
        host = getattr(prepared.profile, "supervisor", "another machine")
        raise UsageError(
            f"{host} looks after the runs of profile {prepared.profile.name}, and this Python can't see them",
            'submit it with the command line, or with sets={"profile.supervisor": "here"}',
        )
