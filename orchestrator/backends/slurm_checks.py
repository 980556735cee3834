"""What a submit to a Slurm profile would meet, and what its job would find on a node: the checks of `orch doctor`."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.backends import backend, kind_of
from orchestrator.backends.hosts import workdir_of
from orchestrator.backends.slurm_client import NO_SLURM, Client, first_line
from orchestrator.backends.slurm_cluster import Verdict, fits, partitions, would_take
from orchestrator.errors import BackendError
from orchestrator.node.machine import ASK_INTERPRETER
from orchestrator.store import RunDir, newest_runs, read_lines, state_root

PROGRAMS: Final = ("sbatch", "srun", "squeue", "scancel")
CHECKS: Final = ("login", "programs", "partition", "sbatch", "workdir", "grace", "node")
ALWAYS: Final = CHECKS[1:-1]
LEAST_FREE: Final = 1 << 30
NODE_SECONDS: Final = 60
RUNS: Final = 20
NOT_SHARED: Final = "set workdir: in the profile to a folder that login and compute nodes share"
# Run by one task on a node: is what was written on the login node there, and what is the interpreter?
LOOK: Final = """
hostname
if [ "$(cat "$1" 2>/dev/null)" = "$2" ]; then echo shared; else echo apart; fi
"$3" -c "$4" 2>&1
"""


def examine(profile: Any, *, on_node: bool) -> dict[str, Verdict]:
    """The checks that could be made, by their names in CHECKS; `on_node` queues one job of a minute at most."""
    values, found = profile.model_dump(mode="json"), dict[str, Verdict]()
    machine: Any = backend(kind_of(values))
    client: Client = machine.client(values)
    try:
        if values["login"]:
            session = machine.session(values["login"], workdir_of(values))
            found["login"] = ("ok", "connected", "")
            found["workdir"] = _room(session.call("hello", workdir=workdir_of(values))[0])
        if missing := client.way.missing(PROGRAMS):
            found["programs"] = ("fail", f"no {', '.join(missing)} on {client.way.where}", NO_SLURM)
            return found
        found["programs"] = ("ok", "sbatch", "")
        found["partition"] = fits(values, partitions(client))
        found["sbatch"] = would_take(client, *_script(profile, machine))
        found["grace"] = _grace(client, values)
        if not values["login"]:
            found["workdir"] = _folder(machine, profile)
        if on_node:
            found["node"] = _on_node(client, machine, profile, values)
    except BackendError as error:
        failed = "login" if values["login"] and "login" not in found else "partition"
        found[failed] = ("fail", error.message, error.hint)
    return found


def _script(profile: Any, machine: Any) -> tuple[str, dict[str, Any], int | None]:
    from orchestrator.plan import plan  # noqa: PLC0415 (loads pydantic)
    from orchestrator.spec import Job  # noqa: PLC0415 (loads pydantic)

    place = machine.place(RunDir(state_root() / "runs" / "doctor"), profile.workdir, profile.python)
    launch = plan(Job(name="doctor", command=("true",)), profile, "doctor", place)
    return machine.script(launch), launch.profile, launch.time_limit


def _room(hello: Mapping[str, Any]) -> Verdict:
    found = f"{hello['workdir']}, {hello['free'] >> 20} MiB free; every node has to see it"
    return ("ok", found, "") if hello["free"] >= LEAST_FREE else ("warn", found, "make room there")


def _folder(machine: Any, profile: Any) -> Verdict:
    """Can runs be written there, and is there room? The nearest folder above that exists is asked."""
    place = machine.place(RunDir(state_root() / "runs" / "doctor"), profile.workdir, profile.python)
    folder = Path(place.run_dir)
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return "fail", f"{folder} can't be written", NOT_SHARED
    return _room({"workdir": folder, "free": shutil.disk_usage(folder).free})


# -- how long a rank may save


def _grace(client: Client, profile: Mapping[str, Any]) -> Verdict:
    """Does a preempted rank have the time for a checkpoint like the last one of a run with this profile?"""
    config = client.call("scontrol", "show", "config").out
    shown = client.call("scontrol", "show", "partition", "-o", *filter(None, [profile["partition"]])).out
    kill_wait, grace_time = seconds_of(config, "KillWait"), max(seconds_in(shown, "GraceTime"), default=0)
    if kill_wait is None:
        return "-", "Slurm does not say how long it waits", ""
    took, left = last_save(str(profile["name"])), kill_wait + grace_time
    said = f"{left} s from TERM to KILL (KillWait {kill_wait} s, GraceTime {grace_time} s)"
    if took is None:
        return "ok", f"{said}; no run with this profile has recorded a checkpoint", ""
    if took <= left:
        return "ok", f"{said}; the last checkpoint took {took:.1f} s", ""
    return (
        "warn",
        f"the last checkpoint took {took:.1f} s, but there are {said}",
        ("a preempted run loses what it did since the checkpoint before: save more often, or a smaller state"),
    )


def seconds_of(config: str, name: str) -> int | None:
    """The number of `KillWait                = 30 sec` in what `scontrol show config` prints; None without one."""
    match = re.search(rf"^{name}\s*=\s*(\d+)", config, re.MULTILINE)
    return int(match[1]) if match else None


def seconds_in(shown: str, name: str) -> Iterator[int]:
    """The numbers of `GraceTime=0` in what `scontrol show partition` prints, a line a partition."""
    return (int(number) for number in re.findall(rf"\b{name}=(\d+)", shown))


def last_save(profile: str) -> float | None:
    """How many seconds the newest recorded checkpoint of a run with this profile took; None where there is none."""
    for run in newest_runs(state_root(), RUNS):
        if (run.read("run.json") or {}).get("profile_name") == profile:
            lines = [line for line in read_lines(run.path / "metrics.jsonl") if line.get("kind") == "save"]
            took = [line["seconds"] for line in lines if isinstance(line.get("seconds"), int | float)]
            if took:
                return float(took[-1])
    return None


# -- from a node


def _on_node(client: Client, machine: Any, profile: Any, values: Mapping[str, Any]) -> Verdict:
    """What one short job finds: a token that was written here, and the interpreter that would train."""
    place = machine.place(RunDir(state_root() / "runs" / "doctor"), profile.workdir, profile.python)
    folder, token = str(Path(place.run_dir).parent), secrets.token_hex(8)
    if values["login"]:
        hello = machine.session(values["login"], workdir_of(values)).call("hello", workdir=workdir_of(values))[0]
        folder = f"{hello['workdir']}/runs"
    path = f"{folder}/.doctor-{token}"
    made = client.call("sh", "-c", 'mkdir -p "$1" && printf %s "$2" >"$3"', "sh", folder, token, path)
    if made.code != 0:
        return "fail", f"{folder} can't be written: {first_line(made.err)}", NOT_SHARED
    try:
        python = profile.python or ("python3" if values["login"] else sys.executable)
        asked = [f"--{name}={values[name]}" for name in ("partition", "account", "qos", "constraint", "exclude", "gres")
                 if values[name]]  # fmt: skip
        words = ("sh", "-c", LOOK, "sh", path, token, python, ASK_INTERPRETER)
        answer = client.call(
            "srun", "--nodes=1", "--ntasks=1", "--time=2", "--job-name=orch-doctor", f"--immediate={NODE_SECONDS}",
            "--chdir=/", *asked, *words, timeout=2 * NODE_SECONDS,
        )  # fmt: skip
    finally:
        client.call("rm", "-f", path)
    return seen_there(answer.out, answer.err, folder, python)


def seen_there(out: str, err: str, folder: str, python: str) -> Verdict:
    """The verdict on what LOOK printed on a node, and what srun said; pure."""
    host, shared, *rest = [line.strip() for line in out.splitlines() if line.strip()] or ["", ""]
    if shared not in ("shared", "apart"):
        busy = "Unable to allocate resources" in err or "Requested nodes are busy" in err
        said = f"no node was free within {NODE_SECONDS} s" if busy else f"srun failed: {first_line(err)}"
        return ("warn" if busy else "fail"), said, "try again when sinfo shows an idle node"
    if shared == "apart":
        return "fail", f"{host} does not see {folder} as this side does", NOT_SHARED
    try:
        found = json.loads(rest[-1])
    except (IndexError, ValueError):
        return (
            "fail",
            f"{host}: {python} can't be started there: {(rest or ['it says nothing'])[-1]}",
            ("set python: in the profile to an interpreter that login and compute nodes share"),
        )
    if not found["torch"]:
        return "fail", f"{host}: {python} has no torch", f"install torch for {python}, or set python: in the profile"
    return "ok", f"{host} sees {folder}; python {found['python']}, torch {found['torch']}", ""
