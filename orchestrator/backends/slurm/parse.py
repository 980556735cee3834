"""Parses the output of squeue, scontrol and sacct, and describes each state and reason in a sentence. This module has
no side effects.

It reads only formats that are the same in every Slurm since 20.02: `-o` of squeue, `-o` of scontrol, `-P` of sacct. The
JSON output differs between versions.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.backends.batch.scheduler import Job
from orchestrator.outcome.scheduler import JobEnd
from orchestrator.protocol.str_enum import member_of
from orchestrator.runs.job_use import JobUse
from orchestrator.specs.sbatch_options import seconds_in

SQUEUE_FORMAT: Final = "%i|%T|%r|%S %l|%N|%j|%k|%o"
SACCT_FIELDS: Final = "JobID,State,ExitCode,NodeList,JobName,Comment"
COMMENT: Final = "orch {}"  # the comment of each job that orch submits, with its name
USE_FIELDS: Final = "JobID,State,ElapsedRaw,TimelimitRaw,AllocCPUS,TotalCPU,AllocTRES,TRESUsageInTot,JobName"
JOB_ID: Final = re.compile(r"\d+(_\d+)?")  # 17, or 17_3: a task of an array
NOTHING: Final = ("", "(null)", "None", "N/A", "Unknown", "n/a")

WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})

FORGOTTEN: Final = "FORGOTTEN"  # not a word of Slurm: the state of a job that Slurm has lost
ENDED: Final = {
    "COMPLETED": "the job is over",
    "FAILED": "its batch script failed",
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "its time limit was reached",
    "NODE_FAIL": "one of its nodes failed",
    "PREEMPTED": "it had to give way to another job",
    "OUT_OF_MEMORY": "it used more memory than it had asked for",
    "DEADLINE": "its deadline passed before it was done",
    "BOOT_FAIL": "a node could not be booted for it",
    "REVOKED": "another cluster has taken it over",
    FORGOTTEN: "Slurm does not know it any more, and has no record of its end: submit it again if it had not begun",
}

# Slurm has many words for its reasons, so each family of limits shares a sentence.
REASONS: Final = (
    (r"Priority", "other jobs are ahead of it in the queue"),
    (r"Resources", "it is next, as soon as enough nodes are free"),
    (r"None|", "not considered by the scheduler yet"),
    (r"Dependency", "it waits for another job"),
    (r"DependencyNeverSatisfied", "it waits for a job that did not end as it had to: it will never start"),
    (r"JobHeldUser", "you are holding it back: scontrol release lets it go"),
    (r"JobHeldAdmin|JobHoldMaxRequeue", "it is held back, and only an administrator can let it go"),
    (r"launch_failed_requeued_held|job_requeued_in_held_state", "it failed to start and is held: scontrol release"),
    (r"ReqNodeNotAvail.*", "nodes that it needs are down or reserved"),
    (r"NodeDown|BadConstraints|FeaturesNotAvailable", "no node that is up has what it asks for"),
    (r"PartitionDown|PartitionInactive", "the partition takes no jobs now"),
    (r"PartitionNodeLimit", "it asks for more nodes than the partition gives a job"),
    (r"PartitionTimeLimit", "it asks for more time than the partition gives a job"),
    (r"PartitionConfig", "the partition can't give what it asks for"),
    (r"Licenses", "it waits for a licence"),
    (r"Reservation.*", "it waits for its reservation"),
    (r"InvalidAccount|AccountNotAllowed", "its account may not use this partition, or is unknown"),
    (r"InvalidQOS|QOSNotAllowed", "its qos may not be used here, or is unknown"),
    (r"JobArrayTaskLimit", "enough of its array are running"),
    (r"QOSMaxJobsPerUserLimit|QOSMaxJobsPerUser|AssocMaxJobsLimit|MaxJobsPerAccount|AssociationJobLimit",
     "you have as many jobs running as you may"),
    (r"QOSMaxWall.*|AssocMaxWall.*", "it asks for more time than you may have"),
    (r"QOSMinGRES|QOSMin.*", "it asks for less than the qos demands"),
    (r"QOSMax.*PerUser.*|QOSMax.*PerUser", "you use as much as the qos gives one user"),
    (r"QOSMax.*|AssocMax.*|MaxMemPerLimit|MaxCpu.*|.*PerJob.*", "it asks for more than one job may have"),
    (r"QOSGrp.*|QOSResourceLimit|QOSUsageThreshold", "all jobs of its qos together use what they may"),
    (r"AssocGrp.*|AssociationResourceLimit|AccountingPolicy", "your account uses as much as it may"),
    (r"Cleaning|RaisedSignal.*|NonZeroExitCode|SystemFailure|JobLaunchFailure", "its last start is being tidied up"),
    (r"Prolog", "the nodes are being prepared for it"),
)  # fmt: skip
# The messages about an unknown job in Slurm 20.02 to 26.05. scontrol prints the second for a task of an array.
UNKNOWN: Final = re.compile(r"Invalid job id|^Job \d+(_\d+)? not found", re.IGNORECASE | re.MULTILINE)
UNREACHABLE: Final = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes", "Connection refused",
                      "Connection timed out", "Transport endpoint", "configuration source")  # fmt: skip
UNANSWERED: Final = ("Socket timed out", "Zero Bytes")  # the request was sent, so the job may be queued
CANT_OPEN: Final = 53  # the exit code of slurmd itself if it can't open the job's log
NOT_SHARED: Final = "which has to be shared with the login node: set `workdir` in the profile to such a folder"
STUCK: Final = (
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|DependencyNeverSatisfied|Invalid(Account|QOS)|"
    r"AccountNotAllowed|QOSNotAllowed|(QOS|Assoc)Max(?!Jobs).*PerJob.*|(QOS|Assoc)MaxWall.*|JobHoldMaxRequeue"
)


@dataclass(frozen=True)
class JobLine(Job):
    """One job in the output of one of Slurm's programs."""

    code: int | None = None
    signal: int | None = None
    restarts: int = 0
    comment: str = ""
    command: str = ""  # its batch script

    def is_named(self, name: str) -> bool:
        """Return True if the name of a run or sweep is the job's name, or is in its comment or in its script's path.

        A site may change a job's name or comment, and Slurm may give the job's number to another job later.
        """
        return name == self.name or COMMENT.format(name) == self.comment or f"/{name}/" in self.command

    @property
    def phase(self) -> str:
        if self.state in WAITING:
            return "waiting"
        return "ended" if self.state in ENDED else "active"

    @property
    def is_stuck(self) -> bool:
        return re.fullmatch(STUCK, self.reason) is not None

    @property
    def is_suspended(self) -> bool:
        return self.state in ("SUSPENDED", "STOPPED")

    @property
    def takes_signals(self) -> bool:
        # In any other state, Slurm refuses a signal for now, and scancel repeats the request for more than a minute.
        return self.state == "RUNNING"

    @property
    def is_deferred(self) -> bool:
        return self.reason == "BeginTime"

    @property
    def ending(self) -> JobEnd:
        return JobEnd.TIMEOUT if self.state == "DEADLINE" else member_of(JobEnd, self.state.lower()) or JobEnd.OTHER

    def why_it_waits(self, *, has_run: bool = False) -> str:
        """Return a sentence about the reason why the job waits. If orch does not know the reason, the sentence has
        Slurm's word for it.
        """
        when = self.start.replace("T", " ")
        if self.is_deferred:
            words = [*(["requeued"] if has_run else []), f"eligible from {when or 'a later time'}"]
            return f"Slurm job {self.job_id} pending: {', '.join(words)} (BeginTime)"
        known = (sentence for pattern, sentence in REASONS if re.fullmatch(pattern, self.reason))
        sentence = next(known, "Slurm holds it back")
        word = f" ({self.reason})" if self.reason else ""
        return f"Slurm job {self.job_id} pending: {sentence}{word}{f'; may start at {when}' if when else ''}"

    def how_it_ended(self, user: str = "") -> str:
        sentence = ENDED.get(self.state, f"its state is {self.state}")
        if self.state == "CANCELLED" and (user or self.by):
            sentence += f" by {user or f'user {self.by}'}"
        if self.state == "FAILED" and self.signal == CANT_OPEN:
            sentence = f"its first node can't write to the run's folder, {NOT_SHARED}"
        elif self.state == "FAILED" and not self.nodes:
            sentence = "Slurm ended it before it had a node"
        elif self.state == "FAILED" and self.signal:
            sentence += f", killed by {_signal_name(self.signal)}"
        elif self.state == "FAILED" and self.code:
            sentence += f" with exit code {self.code}"
        if self.state == "NODE_FAIL" and self.nodes:
            sentence += f" (of {self.nodes})"
        return f"Slurm job {self.job_id}: {sentence} ({self.state})"


def parse_squeue(text: str) -> list[JobLine]:
    """Return the jobs in the output of `squeue --noheader -o SQUEUE_FORMAT`. Lines in an unknown form are ignored."""
    jobs = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 7)]
        if len(parts) > 5 and JOB_ID.fullmatch(parts[0]):
            job_id, state, reason, start, nodes, name, comment, command = [*parts, "", ""][:8]
            word, by = state_word(state)
            start, _, limit = start.partition(" ")
            jobs.append(JobLine(job_id, word, name, _said(reason), _said(start), _said(nodes), by,
                                limit=seconds_in(limit), comment=_said(comment), command=_said(command)))  # fmt: skip
    return jobs


def parse_scontrol(text: str) -> JobLine | None:
    """Return the job in the output of `scontrol show job -o ID`; None if the output has no job."""
    fields = dict(re.findall(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)", text))
    if "JobId" not in fields or "JobState" not in fields:
        return None
    word, by = state_word(fields["JobState"])
    code, signal = exit_code(fields.get("ExitCode", ""))
    task = fields.get("ArrayTaskId", "")
    return JobLine(
        f"{fields.get('ArrayJobId')}_{task}" if task.isdecimal() else fields["JobId"],
        word,
        fields.get("JobName", ""),
        _said(fields.get("Reason", "")),
        _said(fields.get("StartTime", "")),
        _said(fields.get("NodeList", "")),
        by,
        code,
        signal,
        int(fields["Restarts"]) if fields.get("Restarts", "").isdecimal() else 0,
        _comment_in(text),
        _said(fields.get("Command", "")),
    )


def _comment_in(shown: str) -> str:
    """Return the comment of a job from the output of `scontrol show job -o`. The comment may contain spaces."""
    match = re.search(r"\sComment=(.*?)(?=\s[A-Z][\w/:]*=|$)", shown, re.MULTILINE)
    return _said(match[1].strip()) if match else ""


def controller_trouble(ping: str) -> str:
    """Return the output of `scontrol ping` in one line if no controller is up; "" if a controller is up."""
    lines = [line.strip() for line in ping.splitlines() if line.strip()]
    return "" if any(line.endswith(" UP") for line in lines) else "; ".join(lines)


def parse_sacct(text: str) -> list[JobLine]:
    """Return the jobs in the output of `sacct -n -X -P -o SACCT_FIELDS`, the newest last; empty without accounting."""
    jobs = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 5)]
        if len(parts) > 4 and JOB_ID.fullmatch(parts[0]):
            job_id, state, code, nodes, name, comment = [*parts, ""][:6]
            word, by = state_word(state)
            jobs.append(JobLine(job_id, word, name, nodes=_said(nodes).replace("None assigned", ""), by=by,
                                code=exit_code(code)[0], signal=exit_code(code)[1], comment=comment))  # fmt: skip
    return jobs


def parse_use(text: str, name: str) -> JobUse | None:
    """Return the resources that a job used, from the output of `sacct -n -P -j NUMBER -o USE_FIELDS`, which also lists
    the job's steps. They are computed as Slurm's tool seff does.

    Several jobs may have had the number, so the newest job of this name is chosen. If no job has the name, the newest
    job is chosen, because a site or a user may have renamed it.
    """
    jobs: list[tuple[bool, JobUse]] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 8)]
        if len(parts) != 9:
            continue
        job_id, state, elapsed, limit, cores, computed, given, used, its_name = parts
        if "." in job_id and jobs:  # a step of the newest job
            is_named, job = jobs[-1]
            jobs[-1] = is_named, replace(job, memory=max(memory_in(used) or 0, job.memory or 0) or None)
        elif JOB_ID.fullmatch(job_id):
            job = JobUse(
                job_id, state_word(state)[0], float(elapsed) if elapsed.isdecimal() else 0.0,
                60.0 * int(limit) if limit.isdecimal() else None, int(cores) if cores.isdecimal() else 0,
                cpu_seconds(computed), None, memory_in(given),
            )  # fmt: skip
            jobs.append((its_name == name, job))
    return max(enumerate(jobs), key=lambda each: (each[1][0], each[0]))[1][1] if jobs else None


def memory_in(tres: str) -> int | None:
    """Return the bytes of `mem` in a text such as `cpu=8,mem=4000M,node=2`; None if the text has no `mem`."""
    match = re.search(r"(?:^|,)mem=(\d+(?:\.\d+)?)([KMGTP]?)", tres)
    return int(float(match[1]) * 1024 ** " KMGTP".index(match[2] or " ")) if match else None


def cpu_seconds(text: str) -> float | None:
    """Return the seconds of `1-02:03:04`, `02:03:04` or `03:04.567`; None for any other text."""
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = match.groups(default="0")
    return 86400.0 * int(days) + 3600.0 * int(hours) + 60.0 * int(minutes) + float(seconds)


def state_word(text: str) -> tuple[str, str]:
    """Return the state and the id of the user who cancelled the job, from `CANCELLED by 1000`, `CANCELLED+` or
    `RUNNING`.
    """
    match = re.fullmatch(r"([A-Za-z_]+)\+?(?: by (\d+))?\+?", text.strip())
    return (match[1].upper(), match[2] or "") if match else (text.strip().upper(), "")


def exit_code(text: str) -> tuple[int | None, int | None]:
    """Return (exit code, signal) from `1:0`; None for a missing number."""
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    return (int(match[1]), int(match[2]) or None) if match else (None, None)


def job_id_of(answer: str) -> str | None:
    """Return the number in `Submitted batch job 17` or in the output of `--parsable`; None if there is no number."""
    match = re.search(r"job (\d+)", answer) or re.fullmatch(r"(\d+)(?:;\S*)?", answer.strip())
    return match[1] if match else None


def wait_seconds(start: str, now: float) -> float:
    """Return how many seconds remain until a time in Slurm's format, such as `2026-03-01T10:00:00` in this machine's
    time zone; 0 for any other text.
    """
    try:
        return time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S")) - now
    except (ValueError, OverflowError):
        return 0.0


def is_unreachable(said: str) -> bool:
    """Return True if an error message says that the controller could not be reached."""
    return any(words.lower() in said.lower() for words in UNREACHABLE)


def is_unanswered(said: str) -> bool:
    """Return True if an error message of sbatch does not show whether the job was queued."""
    return any(words.lower() in said.lower() for words in UNANSWERED)


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _said(text: str) -> str:
    return "" if text in NOTHING else text
