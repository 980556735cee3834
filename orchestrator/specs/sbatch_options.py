"""Which options of sbatch a profile may add under `sbatch:`, and which have a place of their own. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

# sbatch's long options from Slurm 20.02 to 25.05, without those below; an option may be newer than a cluster's sbatch.
_OPTIONS: Final = """
    acctg-freq batch bb bbf begin burst-buffer chdir cluster-constraint clusters container container-id contiguous
    core-spec cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot dependency distribution exclusive export
    export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-socket gpus-per-task
    gres-flags hint hold ignore-pbs immediate jobid kill-on-invalid-dep licenses mail-type mail-user mcs-label mem
    mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill nodefile nodelist ntasks-per-core ntasks-per-gpu
    ntasks-per-socket oom-kill-step overcommit oversubscribe power prefer priority profile propagate reboot
    reservation resv-ports segment signal sockets-per-node spread-job stepmgr switches thread-spec threads-per-core
    time-min tmp tres-bind tres-per-job tres-per-task uid use-min-nodes wait-all-nodes wckey x11
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
OPTIONS: Final = frozenset(_OPTIONS.split())
OURS: Final = frozenset(_OURS.split())


def known_options(options: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    """Return the options as sbatch spells them; ValueError for an unknown one, or one that has its place elsewhere.

    `a_b` and `a-b` are the same option.
    """
    named = {name.removeprefix("--").replace("_", "-"): value for name, value in options.items()}
    for name in named:
        if name in FIELDS:
            raise ValueError(f"'{name}' has a field of its own: write {FIELDS[name]}: beside sbatch:, not in it")
        if name in OURS:
            raise ValueError(f"'{name}' is set by orch itself, so that it finds the job and its nodes again")
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, [*OPTIONS, *FIELDS], n=1)
            guess = f"; did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"sbatch has no option '{name}'{guess} It has: {', '.join(sorted(OPTIONS))}")
    return named
