"""The facts about each scheduler that nodes and the submitting machine need. A new scheduler is a new row.

The commands that submit, list and cancel jobs are in `backends/`, because only the submitting machine needs them.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

from orchestrator.protocol.frozen import Value

Slots = dict[str, Optional[int]]
"""The number of slots of each host of a job, in the order of the hosts; None if the number is unknown."""

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""A scheduler sends these signals before it stops or suspends a job. By default, each of them would end a process."""
WARNING_NAMES = tuple(each.name[3:] for each in WARNINGS)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, *WARNINGS, signal.SIGXCPU)
"""The signals upon which an agent stops. orch itself sends SIGXCPU to node 0's agent when the time limit of a job of
Grid Engine or PBS is near, because Grid Engine also sends SIGUSR2 before other ends of a job.
"""

WARN_SECONDS, LEAST_WARNING = 90.0, 10.0
BATCH_PID = "batch.pid"  # the file, in a run's folder, with the process that runs a batch file as it is
LIMIT_SIGNALS = ("SIGXCPU", *(each.name for each in WARNINGS))
"""The signals that announce the time limit. orch sends SIGXCPU. Slurm sends SIGUSR2 because orch requests it, or
SIGUSR1 because the profile does.
"""


class Starter(Value):
    """A scheduler's command that starts a program on a machine of a job and connects the program's standard streams.
    `{host}` and `{job}` in its words are replaced by the machine and the job's number.
    """

    name: str
    """The command in a profile's `start_by`."""
    words: tuple[str, ...]
    plain: tuple[str, ...] = ()
    """The options for a program without a terminal."""
    terminal: tuple[str, ...] = ()
    """The options for a program that gets this terminal."""
    end: tuple[str, ...] = ()
    """The words after the options."""
    takes_words: bool = False
    """True if the program is passed as separate words; False if it is one word, which a shell reads."""
    skips_first: bool = False
    """True if a program on this machine is started without the command."""

    def argv(self, host: str, job: str, view: Sequence[str] = ()) -> list[str]:
        """Return the words of the command. `view` is `plain` or `terminal`."""
        return [word.format(host=host, job=job) for word in (*self.words, *view, *self.end)]


class SchedulerFacts(Value):
    """The facts about a scheduler."""

    name: str
    """The kind of its profiles."""
    title: str
    """Its name in messages."""
    machines: str
    """The variable in a job that lists the job's machines, or names the file that lists them."""
    number: str
    """The variable with the job's number."""
    slots: Callable[[str, Mapping[str, str]], Slots]
    """The reader of the list of machines."""
    state: tuple[str, ...]
    """The command that shows a job."""
    over: str
    """The output of `state` matches this pattern if the job has ended, or if it waits again without its machines."""
    lists_in_file: bool = True
    """False if the variable `machines` has the list itself."""
    starter: Starter | None = None
    remote_shell: tuple[str, ...] = ()
    """The command that runs a shell line on another machine of the job. The host and the line are appended. The first
    process of a job starts the other agents with it (`node/agent/job.py`).
    """
    cores: str = ""
    """The variable with the number of cores on each machine, if the list of machines does not count them."""
    if_too_few: str = ""
    """A hint, appended to the error message for a job that got fewer machines than the run needs."""
    hidden: tuple[str, ...] = ()
    """The prefixes of the variables that its programs read as options."""
    kept: tuple[str, ...] = ()
    """The variables that are kept although they have a prefix in `hidden`, because they name the cluster or
    authenticate the user.
    """
    folder: str = "batch"
    """The folder, within a run's folder, of the job's script and logs."""
    limit_signals: tuple[str, ...] = LIMIT_SIGNALS
    """The signals that announce the job's time limit."""

    def step(self, host: str, job: str, argv: Sequence[str], *, terminal: bool = False) -> list[str]:
        """Return the argv that runs a program on a machine of a job by the `starter`, which the scheduler must have."""
        assert self.starter is not None, f"{self.title} has no command that starts a program on a machine of a job"
        words = self.starter.argv(host, job, self.starter.terminal if terminal else self.starter.plain)
        return self.hiding([*words, *(argv if self.starter.takes_words or not argv else [shlex.join(argv)])])

    def hiding(self, argv: Sequence[str]) -> list[str]:
        """Return the argv that runs one of its programs without the variables that would change the program's
        behaviour.
        """
        if not self.hidden:
            return list(argv)
        names = "env|sed -n 's/^\\([A-Z_a-z0-9]*\\)=.*/\\1/p'"
        kept, hidden = "|".join(self.kept), "|".join(f"{prefix}*" for prefix in self.hidden)
        line = f"for orch_each in $({names}); do case $orch_each in {kept}) ;; {hidden}) unset $orch_each;; esac; done"
        return ["sh", "-c", f'{line}; exec "$@"', argv[0], *argv]


# -- readers of the lists in which schedulers name the machines of a job
#
# Slurm lists the machines in a variable. Other schedulers write a file: Grid Engine writes a line for each machine with
# the number of its slots, and PBS, OAR and LSF write a line for each slot. Each reader gets the text and the job's
# environment variables.


def from_slurm(text: str, environ: Mapping[str, str]) -> Slots:
    """Read Slurm's list of nodes, such as `n[1-3]`. Raises ValueError if the list can't be read."""
    from orchestrator.protocol.hostlist import expand  # commands that only read runs load this module

    hosts = expand(text)
    per_host = environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE") or ""
    return dict(zip(hosts, _numbers(per_host, len(hosts))))


def _numbers(text: str, hosts: int) -> list[int | None]:
    """Parse Slurm's notation for a number per host: `4(x2),1` means 4, 4 and 1. If the text can't be parsed, the number
    of every host is None.
    """
    counts: list[int | None] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:\(x(\d{1,5})\))?", part.strip())
        if match is None:
            return [None] * hosts
        counts += [int(match[1])] * int(match[2] or 1)
    return counts if len(counts) == hosts else [None] * hosts


def by_lines(text: str, environ: Mapping[str, str]) -> Slots:
    """Read a file with one line per slot. Hosts are in the order of their first lines."""
    found: dict[str, int] = {}
    for host in (words[0] for line in text.splitlines() if (words := line.split())):
        found[host] = found.get(host, 0) + 1
    return {**found}


def by_numbers(text: str, environ: Mapping[str, str]) -> Slots:
    """Read Grid Engine's file, whose lines are `HOST SLOTS QUEUE PROCESSORS`. A host has several lines if several
    queues gave it slots.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[1].isdecimal():
            found[words[0]] = found.get(words[0], 0) + int(words[1])
    return {**found}


_ROWS = (
    SchedulerFacts(
        "slurm", "Slurm", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", from_slurm,
        ("squeue", "--noheader", "--format=%T", "--jobs={job}"), r"|PENDING|COMPLETING|.*Invalid job id.*",
        lists_in_file=False,
        # --overlap shares the machine with the job's other steps. Without --unbuffered, Slurm holds a program's bytes
        # back until a line is complete.
        starter=Starter(
            "srun",
            ("srun", "--jobid={job}", "--overlap", "--export=ALL", "--nodelist={host}", "--nodes=1", "--ntasks=1",
             "--mem=0", "--cpu-bind=none", "--mpi=none"),
            plain=("--quiet", "--unbuffered"), terminal=("--pty",), takes_words=True,
        ),
        hidden=("SBATCH_", "SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_", "SACCT_",
                "SCANCEL_", "SUBMITIT_"),  # submitit writes the batch script
        kept=("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_WORKING_CLUSTER", "SLURM_JWT", "SLURM_SACK_KEY",
              "SLURM_SACK_JWKS"),
        folder="slurm",
    ),
    SchedulerFacts(
        "sge", "Grid Engine", "PE_HOSTFILE", "JOB_ID", by_numbers, ("qstat", "-j", "{job}"), r".*do(es)? not exist.*",
        # The job's script has a slot of the first machine, in which Grid Engine may start nothing else.
        starter=Starter("qrsh", ("env", "JOB_ID={job}", "qrsh", "-inherit", "-V"), terminal=("-pty", "yes"),
                        end=("{host}",), skips_first=True),
        remote_shell=("qrsh", "-inherit", "-nostdin", "-V"),
        if_too_few="set `pe` to a parallel environment whose allocation_rule is the number of slots of one node",
        limit_signals=("SIGXCPU",),  # Grid Engine sends SIGUSR2 before every end of a job, even after `qdel`
    ),
    SchedulerFacts(  # before PBS, because OAR may set PBS's variables too
        "oar", "OAR", "OAR_NODEFILE", "OAR_JOB_ID", by_lines, ("oarstat", "-s", "-j", "{job}"),
        r"\d+: (Terminated|Error).*",
        starter=Starter("oarsh", ("env", "OAR_JOB_ID={job}", "oarsh"), plain=("-T",), terminal=("-t",),
                        end=("{host}",)),
    ),
    SchedulerFacts(
        "lsf", "LSF", "LSB_DJOB_HOSTFILE", "LSB_JOBID", by_lines, ("bjobs", "-noheader", "-o", "stat", "{job}"),
        r"(DONE|EXIT|PEND).*|.*is not found.*",
        starter=Starter("blaunch", ("env", "LSB_JOBID={job}", "blaunch"), end=("{host}",)),
    ),
    SchedulerFacts(
        "pbs", "PBS", "PBS_NODEFILE", "PBS_JOBID", by_lines, ("qstat", "{job}"), r".*(Unknown Job Id|has finished).*",
        remote_shell=("pbs_tmrsh",),
        # PBS's list has a line for each MPI process. NCPUS is equal on all machines of orch's jobs.
        cores="NCPUS",
        hidden=("PBS_",), kept=("PBS_CONF_FILE", "PBS_EXEC", "PBS_SERVER", "PBS_DEFAULT"),
    ),
)  # fmt: skip
SCHEDULERS: Mapping[str, SchedulerFacts] = {row.name: row for row in _ROWS}
FOLDERS = tuple(sorted({row.folder for row in _ROWS}))
"""The names of the folders, within a run's folder, for a job's script and logs."""
STARTERS: Mapping[str, Starter] = {row.starter.name: row.starter for row in _ROWS if row.starter is not None}
"""The commands by their names in a profile's `start_by`."""


def titled(title: str) -> SchedulerFacts | None:
    """Return the scheduler with this name in messages; None if orch has no row for it."""
    return next((row for row in _ROWS if row.title == title), None)


def warning(limit: float | None) -> float:
    """Return how many seconds before a job's time limit the ranks get the signal to stop. The time is shorter if the
    limit itself is short.

    Slurm checks its limits every 30 s, and may send the signal up to 60 s early.
    """
    return WARN_SECONDS if limit is None else max(LEAST_WARNING, min(WARN_SECONDS, limit / 4))


def number_of(text: str) -> int | None:
    """Return the number of the signal in an option such as `USR1@60`, `SIGUSR1` or `R:10@60`; None if there is none."""
    match = re.fullmatch(r"(?:R:)?(?:(?:SIG)?([A-Z0-9]+?))(?:@\d+)?", text, re.IGNORECASE)
    if match is None:
        return None
    word = match[1].upper()
    return int(word) if word.isdecimal() else getattr(signal, f"SIG{word}", None)
