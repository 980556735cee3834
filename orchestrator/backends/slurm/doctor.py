"""What a submit to a Slurm profile would meet, and what its job would find on a node: the checks of `orch doctor`."""

from __future__ import annotations

import base64
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends import gpu_checks
from orchestrator.backends.base import Check, CheckResult, Level
from orchestrator.backends.settings import SlurmSettings
from orchestrator.backends.slurm.client import NO_SLURM, NO_TLS, Client, first_line
from orchestrator.backends.slurm.environment import Filled, filled, in_words
from orchestrator.backends.slurm.parse import COMMENT, JobLine, job_id_of
from orchestrator.backends.slurm.partitions import fits, partitions, refused, would_take
from orchestrator.backends.slurm.script import cores_per_node, gpus_per_node, options_in, parameters, step_rules
from orchestrator.errors import BackendError, PythonMissingError
from orchestrator.node.server.machine import ASK_INTERPRETER
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.quantities import size
from orchestrator.runs.store import newest_runs, read_lines, state_root

if TYPE_CHECKING:
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.specs.profile import AnyProfile

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
PROGRAMS: Final = ("sbatch", "srun", "squeue", "scancel")
CHECKS: Final = ("login", "python", "programs", "partition", "sbatch", "workdir", "grace", "node")
ALWAYS: Final = CHECKS[2:-1]
ROWS: Final = (*CHECKS, *gpu_checks.CHECKS)
LEAST_FREE: Final = 1 << 30
NODE_SECONDS: Final = 60
LOOK_SECONDS: Final = 1.0
LOOK_MINUTES: Final = 2
JOB_NAME: Final = "orch-doctor"
RUNS: Final = 20
GPU_LINE: Final = '{"said": '
NOT_SHARED: Final = "set workdir: in the profile to a folder that login and compute nodes share"
# Run by one task on a node: is what was written on the login node there, what is the interpreter, and how are its GPUs?
LOOK: Final = """
echo orch-look
hostname
if [ "$(cat "$1" 2>/dev/null)" = "$2" ]; then echo shared; else echo apart; fi
"$3" -c "$4" 2>&1
if [ -e "$1.pyz" ]; then "$3" "$1.pyz" gpus "$3" "$5"; fi
"""


@dataclass(frozen=True)
class Folder:
    """The folder of all runs on the machine where sbatch runs."""

    path: str
    top: str  # what it lies in, and is there already
    free: int  # bytes
    is_writable: bool = True


@dataclass(frozen=True)
class Trial:
    """A Slurm cluster, and the plan of a job to check."""

    client: Client
    launch: LaunchPlan
    script: Callable[[LaunchPlan], str]
    check_python: Callable[[], None]  # BackendError where what starts the agents isn't there, as far as that is known


def trial_plan(profile: AnyProfile, place: Place) -> LaunchPlan:
    """Return the plan of a job that does nothing."""
    from orchestrator.specs.job import Job  # noqa: PLC0415 (loads pydantic)
    from orchestrator.specs.plan import plan  # noqa: PLC0415 (loads pydantic)

    return plan(Job(name="doctor", command=("true",)), profile, "doctor", place)


def examine(settings: SlurmSettings, trial: Trial, runs_folder: Callable[[], Folder], *, on_node: bool) -> list[Check]:
    """Make the checks, in the order of CHECKS; `on_node` queues one job of two minutes at most."""
    found: dict[str, CheckResult] = {}
    try:
        _examine(settings, trial, runs_folder, found, on_node=on_node)
    except BackendError as error:
        failed = "login" if settings.login and "login" not in found else "partition"
        if failed == "login" and isinstance(error, PythonMissingError):
            found["login"], failed = CheckResult(OK, "connected"), "python"
        found[failed] = CheckResult(FAIL, error.message, error.hint)
    made = [what for what in ROWS if what in found or what in ALWAYS]
    unknown = CheckResult(Level.UNKNOWN)
    return [Check(0, settings.login or "Slurm", what, *found.get(what, unknown)) for what in made]


def _examine(
    settings: SlurmSettings,
    trial: Trial,
    runs_folder: Callable[[], Folder],
    found: dict[str, CheckResult],
    *,
    on_node: bool,
) -> None:
    """Add the checks one by one to what has been found, until one can't be made: BackendError then."""
    client, folder = trial.client, runs_folder()
    if settings.login:
        found["login"] = CheckResult(OK, "connected")
        found["python"] = _python(settings, trial)
    found["workdir"] = _room(folder)
    if missing := client.runner.missing(PROGRAMS):
        found["programs"] = CheckResult(FAIL, f"no {', '.join(missing)} on {client.runner.where}", NO_SLURM)
        return
    found["programs"] = CheckResult(OK, "sbatch")
    launch, by_shell = filled(trial.launch, client.runner.environment())
    settings = SlurmSettings.of(launch.profile)
    asked = replace(settings, cpus_per_task=cores_per_node(launch))
    found["partition"] = _noted(fits(asked, partitions(client)), by_shell, launch.profile)
    found["sbatch"] = would_take(client, trial.script(launch), launch)
    found["grace"] = _grace(client, settings)
    if on_node:
        found |= _on_node(client, launch, folder.path)


def _noted(found: CheckResult, by_shell: Filled, profile: Mapping[str, Any]) -> CheckResult:
    """Return the check, with the options that the shell sets."""
    said = in_words(by_shell, {**profile["sbatch"], **profile})
    return found._replace(value="; ".join(filter(None, [found.value, said])))


def _python(settings: SlurmSettings, trial: Trial) -> CheckResult:
    try:
        trial.check_python()
    except BackendError as error:
        return CheckResult(FAIL, error.message, error.hint)
    return CheckResult(OK, settings.python or "python3")


def _room(folder: Folder) -> CheckResult:
    if not folder.is_writable:
        return CheckResult(FAIL, f"{folder.top} can't be written", NOT_SHARED)
    found = f"{folder.top}, {size(folder.free)} free; only --on-node can tell whether the nodes see it"
    return CheckResult(OK, found) if folder.free >= LEAST_FREE else CheckResult(WARN, found, "make room there")


# -- how long a rank may save


def _grace(client: Client, settings: SlurmSettings) -> CheckResult:
    """Check that a preempted rank has the time for a checkpoint like the last one of a run with this profile."""
    config = client.call("scontrol", "show", "config").out
    shown = client.call("scontrol", "show", "partition", "-o", *filter(None, [settings.partition])).out
    kill_wait, grace_time = seconds_of(config, "KillWait"), max(seconds_in(shown, "GraceTime"), default=0)
    if kill_wait is None:
        return CheckResult(Level.UNKNOWN, "Slurm does not say how long it waits")
    took, left = last_save(settings.name), kill_wait + grace_time
    said = f"{left} s from TERM to KILL (KillWait {kill_wait} s, GraceTime {grace_time} s)"
    if took is None:
        return CheckResult(OK, f"{said}; no run with this profile has recorded a checkpoint")
    if took <= left:
        return CheckResult(OK, f"{said}; the last checkpoint took {took:.1f} s")
    hint = "a preempted run loses what it did since the checkpoint before: save more often, or a smaller state"
    return CheckResult(WARN, f"the last checkpoint took {took:.1f} s, but there are {said}", hint)


def seconds_of(config: str, name: str) -> int | None:
    """Return the number of `KillWait                = 30 sec` as `scontrol show config` prints it; None without one."""
    match = re.search(rf"^{name}\s*=\s*(\d+)", config, re.MULTILINE)
    return int(match[1]) if match else None


def seconds_in(shown: str, name: str) -> Iterator[int]:
    """Return the numbers of `GraceTime=0` in what `scontrol show partition` prints, a line a partition."""
    return (int(number) for number in re.findall(rf"\b{name}=(\d+)", shown))


def last_save(profile: str) -> float | None:
    """Return how many seconds the newest checkpoint of a run with this profile took; None without one."""
    for run in newest_runs(state_root(), RUNS):
        if run.record().profile_name == profile:
            lines = [line for line in read_lines(run.path / "metrics.jsonl") if line.get("kind") == "save"]
            took = [line["seconds"] for line in lines if isinstance(line.get("seconds"), int | float)]
            if took:
                return float(took[-1])
    return None


# -- from a node


def _on_node(client: Client, launch: LaunchPlan, folder: str) -> dict[str, CheckResult]:
    """Have one short job look for a token that was written here, start the interpreter that trains, and try the GPUs.

    The job is submitted and started as a run is: by a batch script with the same options, and a step of srun.
    """
    token = secrets.token_hex(8)
    path = f"{folder}/.doctor-{token}"
    made = client.call("sh", "-c", 'mkdir -p "$1" && printf %s "$2" >"$3"', "sh", folder, token, path)
    if made.code != 0:
        return {"node": CheckResult(FAIL, f"{folder} can't be written: {first_line(made.err)}", NOT_SHARED)}
    settings, gpus = SlurmSettings.of(launch.profile), gpus_per_node(launch)
    python = settings.python or ("python3" if settings.login else sys.executable)
    words = ("sh", "-c", LOOK, "sh", path, token, python, ASK_INTERPRETER, str(int(gpu_checks.TRY_SECONDS)))
    try:
        if gpus:
            _send_archive(client, f"{path}.pyz")
        seen = _looked(client, launch, f"{path}.out", words)
    finally:
        client.call("rm", "-f", path, f"{path}.pyz", f"{path}.out")
    if isinstance(seen, CheckResult):
        return {"node": seen}
    lines = seen.splitlines()
    on_gpus = [line for line in lines if line.startswith(GPU_LINE)]
    out = "\n".join(line for line in lines if line not in on_gpus)
    return {"node": seen_there(out, folder, python), **gpus_there(on_gpus, gpus)}


def _looked(client: Client, launch: LaunchPlan, out: str, words: Sequence[str]) -> str | CheckResult:
    """Run these words in a job of one node, and return its output. Return a failed check if the job did not run."""
    script = _script(launch, out, words)
    answer = client.call("sbatch", *options_in(script), stdin=script)
    number = job_id_of(answer.out)
    if answer.code != 0 or number is None:
        error = refused(answer.err or answer.out, client, launch)
        return CheckResult(FAIL, error.message, error.hint)
    end = time.monotonic() + NODE_SECONDS
    while (job := _job(client, number)) is not None and job.phase != "ended":
        late = time.monotonic() - end
        if late > (0 if job.phase == "waiting" else 2 * NODE_SECONDS):
            client.scancel(number)
            if job.phase == "waiting":
                said = f"no node was free within {NODE_SECONDS} s"
                return CheckResult(WARN, said, "try again when sinfo shows an idle node")
            return CheckResult(FAIL, f"Slurm job {number} on {job.nodes} did not end", "look at that node")
        time.sleep(LOOK_SECONDS)  # Slurm sends no message when a job ends, so it is polled
    read = client.call("cat", out)
    if read.code == 0:
        return read.out
    host = (job.nodes if job is not None else "") or "the node"
    folder = out.rpartition("/")[0]
    return CheckResult(FAIL, f"{host} does not see {folder} as this side does", NOT_SHARED)


def _job(client: Client, number: str) -> JobLine | None:
    snapshot = client.queue(fresh=True)
    if snapshot.jobs is None:
        raise BackendError(f"Slurm can't be asked: {snapshot.problem}", transient=True)
    return snapshot.jobs.get(number)


def _script(launch: LaunchPlan, out: str, words: Sequence[str]) -> str:
    """Return the batch script of a job of one node that is started as a run's is, and runs these words."""
    from submitit.slurm.slurm import _make_sbatch_string  # noqa: PLC0415 (60 ms)

    asked = parameters(launch)
    extras = {name: value for name, value in asked["additional_parameters"].items() if "requeue" not in name}
    own = {
        "job_name": JOB_NAME, "comment": COMMENT.format(JOB_NAME), "nodes": 1, "time": LOOK_MINUTES, "setup": [],
        "teardown": [], "additional_parameters": {**extras, "no-requeue": True, "output": out},
    }  # fmt: skip
    command = f"srun {shlex.join([*step_rules(launch), *words])}"
    return str(_make_sbatch_string(command=command, folder=out.rpartition("/")[0], **{**asked, **own}))


def _send_archive(client: Client, path: str) -> None:
    """Put what asks a node's GPUs beside the token; without it they are not asked."""
    from orchestrator.transport.node_archive import node_archive  # noqa: PLC0415 (only this sends it)

    words = ("sh", "-c", 'umask 077; base64 -d >"$1" || rm -f "$1"', "sh", path)
    client.call(*words, stdin=base64.b64encode(node_archive()).decode())


def gpus_there(lines: Sequence[str], asked: int | None) -> gpu_checks.Rows:
    """Return the rows of a node's GPUs by what it has printed of them; pure. None where the profile asks for none."""
    if not asked or not lines:
        return {}
    found = parse_json(lines[-1])
    if not found["said"]["gpus"]:
        hint = "a profile's gres or gpus_per_node gives the job some; install NVIDIA's driver whole there"
        return {"gpus": CheckResult(FAIL, f"the job has none of the {asked} that the profile asks for", hint)}
    return gpu_checks.rows_of(found["said"], found["tried"])


def seen_there(out: str, folder: str, python: str) -> CheckResult:
    """Return the check of the output of LOOK on a node, which follows lines of the batch shell and srun. Pure."""
    before, begun, own = out.partition("orch-look\n")
    host, shared, *rest = [*(line.strip() for line in own.splitlines() if line.strip()), "", ""]
    if not begun or shared not in ("shared", "apart"):
        hint = "a run would end in the same way: orch submit --dry-run shows how it is started"
        return CheckResult(FAIL, f"srun failed: {first_line(before)}", hint)
    if shared == "apart":
        return CheckResult(FAIL, f"{host} does not see {folder} as this side does", NOT_SHARED)
    try:
        rest = list(filter(None, rest))
        found = parse_json(rest[-1])
    except (IndexError, ValueError):
        said = f"{host}: {python} can't be started there: {(rest or ['it says nothing'])[-1]}"
        hint = "set python: in the profile to an interpreter that login and compute nodes share"
        return CheckResult(FAIL, said, hint)
    if not found["torch"]:
        hint = f"install torch for {python}, or set python: in the profile"
        return CheckResult(FAIL, f"{host}: {python} has no torch", hint)
    if not found["tls"]:
        return CheckResult(WARN, f"{host}: {python} {NO_TLS}", "it is for runs of one node only")
    return CheckResult(OK, f"{host} sees {folder}; python {found['python']}, torch {found['torch']}")
