"""The checks of `orch doctor` for a Slurm profile: checks before a job is submitted, and checks in a job on a node."""

from __future__ import annotations

import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.backends import gpu_checks
from orchestrator.backends.base import Check, CheckResult, Level
from orchestrator.backends.batch import doctor as batch_doctor
from orchestrator.backends.batch.backend import NO_TLS, OTHER_PYTHON
from orchestrator.backends.batch.doctor import NOT_SHARED, Found
from orchestrator.backends.batch.scheduler import Job, Trial, in_words
from orchestrator.backends.batch.site import Site, first_line
from orchestrator.backends.slurm.environment import filled
from orchestrator.backends.slurm.parse import COMMENT, job_id_of
from orchestrator.backends.slurm.partitions import fits, partitions, refused, would_take
from orchestrator.backends.slurm.script import cores_per_node, gpus_per_node, options_in, parameters, step_rules
from orchestrator.backends.slurm.settings import settings_of
from orchestrator.backends.slurm.submission import rendered
from orchestrator.errors import BackendError
from orchestrator.node.server.machine import ASK_INTERPRETER
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.store import newest_runs, read_lines, state_root
from orchestrator.transport.node_archive import node_archive

if TYPE_CHECKING:
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.slurm_profile import SlurmProfile

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
OWN: Final = ("partition", "sbatch", "workdir", "grace")
MORE: Final = ("node", *gpu_checks.CHECKS)
NODE_SECONDS: Final = 60
LOOK_SECONDS: Final = 1.0
LOOK_MINUTES: Final = 2
JOB_NAME: Final = "orch-doctor"
RUNS: Final = 20
GPU_LINE: Final = '{"said": '
# One task runs this script on a node. It checks that the node sees the login node's file, the interpreter and the GPUs.
LOOK: Final = """
echo orch-look
hostname
if [ "$(cat "$1" 2>/dev/null)" = "$2" ]; then echo shared; else echo apart; fi
case "$3" in "~/"*) python="$HOME/${3#"~/"}" ;; *) python="$3" ;; esac
"$python" -c "$4" 2>&1
if [ -e "$1.pyz" ]; then "$python" "$1.pyz" gpus "$python" "$5"; fi
"""


def examine(trial: Trial) -> list[Check]:
    """Make the checks. With `trial.on_node`, also submit one job with a time limit of two minutes."""

    def add_own(found: Found) -> None:
        site, folder = trial.site, trial.folder()
        launch, by_shell = filled(trial.launch, site.environment())
        asked = settings_of(launch.profile)
        fitting = fits(replace(asked, cpus_per_task=cores_per_node(launch)), partitions(site))
        found["partition"] = fitting._replace(value="; ".join(filter(None, [fitting.value, in_words(by_shell)])))
        found["sbatch"] = would_take(site, launch)
        found["grace"] = _grace(site, asked)
        if trial.on_node:
            found |= _on_node(site, launch, folder.path)

    unseen = "" if trial.on_node else "only orch doctor --on-node can tell whether the nodes see {}"
    return batch_doctor.examine(trial, OWN, add_own, unseen=unseen, more=MORE)


# -- how long a rank may save


def _grace(site: Site, settings: SlurmProfile) -> CheckResult:
    """Check that a preempted rank has enough time for a checkpoint. It is assumed to take as long as the newest
    checkpoint of a run with this profile.
    """
    config = site.call("scontrol", "show", "config").out
    shown = site.call("scontrol", "show", "partition", "-o", *filter(None, [settings.partition])).out
    kill_wait, grace_time = seconds_of(config, "KillWait"), max(seconds_in(shown, "GraceTime"), default=0)
    if kill_wait is None:
        return CheckResult(Level.UNKNOWN, "Slurm does not report how long it waits between TERM and KILL")
    took, left = last_save(settings.name), kill_wait + grace_time
    said = f"{left} s from TERM to KILL (KillWait {kill_wait} s, GraceTime {grace_time} s)"
    if took is None:
        return CheckResult(OK, f"{said}; no run with this profile has recorded the duration of a checkpoint")
    if took <= left:
        return CheckResult(OK, f"{said}; the last checkpoint took {took:.1f} s")
    hint = "a preempted run loses its work since the last checkpoint: save more often, or make each checkpoint smaller"
    return CheckResult(WARN, f"the last checkpoint took {took:.1f} s, but a job has only {said}", hint)


def seconds_of(config: str, name: str) -> int | None:
    """Return the number in `KillWait = 30 sec`, as `scontrol show config` prints it; None if the line is missing."""
    match = re.search(rf"^{name}\s*=\s*(\d+)", config, re.MULTILINE)
    return int(match[1]) if match else None


def seconds_in(shown: str, name: str) -> Iterator[int]:
    """Return the number in each `GraceTime=N` of the output of `scontrol show partition`, which has one line per
    partition.
    """
    return (int(number) for number in re.findall(rf"\b{name}=(\d+)", shown))


def last_save(profile: str) -> float | None:
    """Return how many seconds the newest checkpoint of a run with this profile took; None if there is no checkpoint."""
    for run in newest_runs(state_root(), RUNS):
        if run.record().profile_name == profile:
            lines = [line for line in read_lines(run.path / "metrics.jsonl") if line.get("kind") == "save"]
            took = [line["seconds"] for line in lines if isinstance(line.get("seconds"), int | float)]
            if took:
                return float(took[-1])
    return None


# -- from a node


def _on_node(site: Site, launch: LaunchPlan, folder: str) -> dict[str, CheckResult]:
    """Run one short job that looks for a token file, starts the training interpreter, and tries the GPUs.

    The job is submitted and started in the same way as a run: by a batch script with the same options, and a step of
    srun.
    """
    token, machine = secrets.token_hex(8), site.machine()
    path = f"{folder}/.doctor-{token}"
    settings, gpus = settings_of(launch.profile), gpus_per_node(launch)
    python = settings.python or ("python3" if settings.login else sys.executable)
    words = ("sh", "-c", LOOK, "sh", path, token, python, ASK_INTERPRETER, str(int(gpu_checks.TRY_SECONDS)))
    try:
        machine.call("write_file", token.encode(), path=path)
        if gpus:
            machine.call("write_file", node_archive(), path=f"{path}.pyz")
    except BackendError as error:
        return {"node": CheckResult(FAIL, f"{folder} can't be written: {error.message}", NOT_SHARED)}
    try:
        seen = _looked(site, launch, f"{path}.out", words)
    finally:
        site.call("rm", "-f", path, f"{path}.pyz", f"{path}.out")
    if isinstance(seen, CheckResult):
        return {"node": seen}
    lines = seen.splitlines()
    on_gpus = [line for line in lines if line.startswith(GPU_LINE)]
    out = "\n".join(line for line in lines if line not in on_gpus)
    return {"node": seen_there(out, folder, python), **gpus_there(on_gpus, gpus)}


def _looked(site: Site, launch: LaunchPlan, out: str, words: Sequence[str]) -> str | CheckResult:
    """Run this command in a job with one node, and return its output. If the job did not run, return a failed check."""
    script = _script(launch, out, words)
    answer = site.call("sbatch", *options_in(script), stdin=script)
    number = job_id_of(answer.out)
    if answer.code != 0 or number is None:
        error = refused(answer.err or answer.out, site, launch)
        return CheckResult(FAIL, error.message, error.hint)
    end = time.monotonic() + NODE_SECONDS
    while (job := _job(site, number)) is not None and job.phase != "ended":
        late = time.monotonic() - end
        if late > (0 if job.phase == "waiting" else 2 * NODE_SECONDS):
            site.cancel(("scancel", number), number)
            if job.phase == "waiting":
                said = f"no node was free within {NODE_SECONDS} s"
                return CheckResult(WARN, said, "try again when sinfo shows an idle node")
            return CheckResult(
                FAIL,
                f"Slurm job {number} on {job.nodes} did not end",
                "ask the cluster's administrator to check that node",
            )
        time.sleep(LOOK_SECONDS)  # Slurm sends no message when a job ends, so it is polled
    read = site.call("cat", out)
    if read.code == 0:
        return read.out
    host = (job.nodes if job is not None else "") or "the node"
    folder = out.rpartition("/")[0]
    return CheckResult(FAIL, f"{folder} is not the same folder on {host} and on the submitting machine", NOT_SHARED)


def _job(site: Site, number: str) -> Job | None:
    snapshot = site.queue(fresh=True)
    if snapshot.jobs is None:
        raise BackendError(f"Slurm can't be asked: {snapshot.problem}", transient=True)
    return snapshot.jobs.get(number)


def _script(launch: LaunchPlan, out: str, words: Sequence[str]) -> str:
    """Return the batch script of a job with one node that runs this command. The job is started in the same way as a
    run.
    """
    asked = parameters(launch)
    extras = {name: value for name, value in asked["additional_parameters"].items() if "requeue" not in name}
    own = {
        "job_name": JOB_NAME, "comment": COMMENT.format(JOB_NAME), "nodes": 1, "time": LOOK_MINUTES, "setup": [],
        "teardown": [], "additional_parameters": {**extras, "no-requeue": True, "output": out},
    }  # fmt: skip
    command = f"srun {shlex.join([*step_rules(launch), *words])}"
    return rendered(command, out.rpartition("/")[0], {**asked, **own})


def gpus_there(lines: Sequence[str], asked: int | None) -> gpu_checks.Rows:
    """Return the check results of a node's GPUs from the lines that the node printed; empty if the profile requests no
    GPUs.
    """
    if not asked or not lines:
        return {}
    found = parse_json(lines[-1])
    if not found["said"]["gpus"]:
        hint = (
            "set `gres` or `gpus_per_node` in the profile to request GPUs; if the node lacks NVIDIA's driver, "
            "install all of it"
        )
        return {"gpus": CheckResult(FAIL, f"the job got none of the {asked} that the profile requests", hint)}
    return gpu_checks.rows_of(found["said"], found["tried"])


def seen_there(out: str, folder: str, python: str) -> CheckResult:
    """Return the check result from the output of the script LOOK on a node. Lines of the batch shell and srun may
    precede that output.
    """
    before, begun, own = out.partition("orch-look\n")
    host, shared, *rest = [*(line.strip() for line in own.splitlines() if line.strip()), "", ""]
    if not begun or shared not in ("shared", "apart"):
        hint = "a run would fail in the same way: orch submit --dry-run shows its start command"
        return CheckResult(FAIL, f"srun failed: {first_line(before)}", hint)
    if shared == "apart":
        return CheckResult(FAIL, f"{folder} is not the same folder on {host} and on the submitting machine", NOT_SHARED)
    try:
        rest = list(filter(None, rest))
        found = parse_json(rest[-1])
    except (IndexError, ValueError):
        said = f"{host}: {python} can't be started there: {(rest or ['it says nothing'])[-1]}"
        return CheckResult(FAIL, said, OTHER_PYTHON)
    if not found["torch"]:
        hint = f"install torch for {python}, or set `python` in the profile to another interpreter"
        return CheckResult(FAIL, f"{host}: {python} has no torch", hint)
    if not found["tls"]:
        return CheckResult(WARN, f"{host}: {python} {NO_TLS}", "this interpreter can only start runs on one node")
    return CheckResult(OK, f"{host} sees {folder}; python {found['python']}, torch {found['torch']}")
