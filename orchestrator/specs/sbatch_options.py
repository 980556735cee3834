"""Reads values of Slurm's options, and checks the options of sbatch that a profile sets under `sbatch:`, because some
have a field of their own or belong to orch. This module has no side effects.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from orchestrator.protocol.schedulers import STOP_SIGNALS, number_of
from orchestrator.specs.units import seconds

# These are sbatch's long options from Slurm 20.02 to 25.11, without FIELDS and _OURS. A cluster's sbatch may be older.
_OPTIONS: Final = """
    acctg-freq batch bb bbf begin burst-buffer chdir container consolidate-segments container-id contiguous
    core-spec cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot dependency distribution exclusive export
    export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-socket gpus-per-task
    gres-flags hint hold ignore-pbs immediate jobid kill-on-invalid-dep licenses mail-type mail-user mcs-label mem
    mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill nodefile nodelist ntasks-per-core ntasks-per-gpu
    ntasks-per-socket oom-kill-step overcommit oversubscribe power prefer priority profile propagate reboot
    reservation resv-ports segment signal sockets-per-node spread-job spread-segments stepmgr switches
    thread-spec threads-per-core time-min tmp tres-bind tres-per-job tres-per-task
    uid use-min-nodes wait-all-nodes wckey x11
"""
FIELDS: Final = {
    **{name: name for name in ("partition", "account", "qos", "time", "gres", "constraint", "exclude", "nodes")},
    "cpus-per-task": "cpus_per_task",
    "gpus-per-node": "gpus_per_node",
    "cpus": "cpus_per_task",
}
_OURS: Final = """
    array comment error input job-name ntasks ntasks-per-node open-mode output parsable quiet requeue no-requeue
    setup srun-args tasks-per-node teardown test-only use-srun verbose wait wrap
"""
EXPEDITE: Final = ("requeue", "expedite")  # a mode of Slurm 25.11 in which the requeued job starts before others
# The options of a batch file that `orch init` converts, in addition to FIELDS, and what they become.
CONVERTED: Final = {
    **{name: f"`{field}` of the profile" for name, field in FIELDS.items()},
    "mem": "`mem` of the profile",
    "gpus": "`gpus_per_node` of the profile, if the file has one node",
    "job-name": "`name` of the job; the name of the Slurm job is the run's id",
    "ntasks": "`nodes` and `nproc_per_node` of the profile",
    "ntasks-per-node": "`nproc_per_node` of the profile",
    "no-requeue": "`retry` of the job",
    **dict.fromkeys(("output", "error", "open-mode"), "orch keeps the log: `orch logs`"),
    **dict.fromkeys(("parsable", "quiet", "verbose"), "only about what sbatch itself prints"),
    "requeue": "orch's default: a run continues after a preemption or its time limit",
}
_ELSEWHERE: Final = "orch starts programs in a copy of the code folder (`code.dir` of the job)"
_COUNTS: Final = "orch can't know the number of ranks on each node from it; give --nodes and --ntasks-per-node"
# The options that no batch file may have, for `orch init` and for a file that orch runs as it is, and why.
REFUSED: Final = {
    "array": "orch submit --sweep starts a run for each value",
    "chdir": _ELSEWHERE,
    "cluster-constraint": "orch submits to one cluster",
    "clusters": "orch submits to one cluster; name its login node in `login` of the profile",
    "comment": "orch finds its jobs by their comments",
    "export-file": "orch passes variables by `env` of the job",
    "get-user-env": "orch starts a login shell for `setup` of the profile",
    "gid": "orch runs everything as the user who submits",
    "input": "orch gives programs no input",
    "test-only": "orch submit --dry-run --check does the same",
    "uid": "orch runs everything as the user who submits",
    "wait": "orch wait does the same",
    "wrap": "the file itself is the program",
}
# The options that sbatch gets from a file that orch runs as it is, and that a conversion would not do justice to.
ONLY_AS_IT_IS: Final = {
    **dict.fromkeys(
        ("cores-per-socket", "gpus-per-socket", "mincpus", "nodefile", "ntasks-per-core", "ntasks-per-gpu",
         "ntasks-per-socket", "overcommit", "sockets-per-node", "spread-job", "tres-per-job", "tres-per-task",
         "use-min-nodes"),
        _COUNTS,
    ),
    "distribution": "orch numbers the ranks node by node",
    "gpus-per-task": "with several tasks on a node, each rank would see all GPUs and choose one by LOCAL_RANK",
    "signal": "orch needs this signal before the time limit: Slurm sends USR2, and orch then sends TERM to the program",
}  # fmt: skip
CLUSTERS: Final = ("clusters", "cluster", "cluster-constraint")
NEWEST: Final = "25.11"
_ASKED: Final = (
    f"{', '.join(each.name[3:] for each in STOP_SIGNALS)}, optionally with the prefix R:, for example USR1@90"
)
OPTIONS: Final = frozenset(_OPTIONS.split())
_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
OURS: Final = frozenset(_OURS.split())
_GPUS: Final = re.compile(r"\bgpu(?::[^:,()]+)??(?::(\d{1,5}))?(?=[,(]|$)")


def gpus_in(gres: str) -> int:
    """Return the number of GPUs in a list of generic resources, in the form of sbatch's option or of sinfo's output."""
    return sum(int(count or 1) for count in _GPUS.findall(gres))


def seconds_in(text: str) -> int | None:
    """Return the seconds of a time in Slurm's form (`30` is minutes, `10:00` is minutes:seconds); None for any other
    text.
    """
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text) * 60
    if short := re.fullmatch(r"([0-9]{1,9}):([0-9]{2})", text):
        return int(short[1]) * 60 + int(short[2])
    try:
        return seconds(text) if re.fullmatch(r"[0-9:-]+", text) else None
    except ValueError:
        return None


def known_options(options: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    """Return the options in sbatch's spelling. `a_b` and `a-b` are the same option.

    Raises ValueError if orch or another field sets an option. An option that is not in OPTIONS may be newer than orch,
    so the cluster's own sbatch accepts or refuses it.
    """
    named = {name.removeprefix("--").replace("_", "-"): value for name, value in options.items()}
    for name, value in named.items():
        if (name, value) == EXPEDITE:
            continue
        if name in CLUSTERS:
            raise ValueError(f"'{name}': orch submits to one cluster; name a login node of that cluster in login:")
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' can't be an option of sbatch: lower-case letters, digits and '-'")
        if name in FIELDS:
            raise ValueError(f"'{name}' has its own field: write `{FIELDS[name]}` next to `sbatch`, not in it")
        if name in OURS:
            raise ValueError(f"'{name}' is set by orch itself, so that it finds the job and its nodes again")
        if name == "signal" and value is not False and number_of(str(value)) not in STOP_SIGNALS:
            raise ValueError(f"'{name}: {value}' is not valid; expected {_ASKED}")
    return named


def note_on_unknown(options: Iterable[str]) -> list[str]:
    """Return a note on each option that no sbatch up to Slurm 25.11 has. `options` are names from `known_options`."""
    unknown = [name for name in options if name not in OPTIONS and name not in OURS]
    near = {name: difflib.get_close_matches(name, [*OPTIONS, *FIELDS], n=1) for name in unknown}
    return [
        f"sbatch: {name}: sbatch has no such option up to Slurm {NEWEST}"
        + (f"; did you mean '{near[name][0]}'?" if near[name] else "; the cluster's own sbatch may accept it")
        for name in unknown
    ]
