"""Parses the output of qstat, qacct, qsub and qselect, and describes each state and end in a sentence. This module has
no side effects.

Grid Engine counts the tasks of an array from 1. In orch, a job's number is 17, or 17_3 for the task that Grid Engine
calls 17.4.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.backends.batch.qsub import QsubJob, by_signal
from orchestrator.runs.job_use import JobUse

NAME: Final = re.compile(r"[A-Za-z]")  # the first character of a job's name
RESCHEDULED: Final = 99  # the exit code by which a job asks for another start
UNREACHABLE: Final = ("commlib error", "unable to contact qmaster", "unable to send message to qmaster",
                      "got send error", "cannot connect to", "can't resolve", "not yet connected")  # fmt: skip
UNANSWERED: Final = ("timeout error", "failed receiving gdi request", "got syncron message")
# (words of `failed` in the accounting, the state here, the sentence)
ENDS: Final = (
    ("qmaster enforced h_rt", "limit", "its time limit was reached"),
    ("execd enforced h_rt", "limit", "its time limit was reached"),
    ("exceeded", "limit", "its time limit was reached"),
    ("rescheduling", "lost", "one of its hosts failed"),
    ("assumedly before job", "failed", "its first host could not start it"),
    ("opening input/output file", "failed", "its first host can't write to the run's folder"),
)
# (words of qstat -j about a job that waits, the sentence); the first that matches counts
REASONS: Final = (
    (r"because it only offers (\d+) slots", "its parallel environment has too few slots that are free"),
    (r"PE .* does not exist|requested PE", "its parallel environment does not exist or is in no queue"),
    (
        r"dropped because it is (temporarily not available|overloaded|disabled)",
        "hosts that it could use are not available",
    ),
    (r"dropped because it is full|All queues dropped", "all hosts that it could use are full"),
    (r"cannot run in queue .* because (.*)", "no queue that it may use has what it asks for"),
    (r"job dependencies|hold_jid|predecessor", "it waits for another job"),
)
STUCK: Final = "no queue that it may use has what it asks for"


@dataclass(frozen=True)
class JobLine(QsubJob):
    """One job in the output of one of Grid Engine's programs."""

    failed: str = ""  # the accounting's own words for an end that the script did not cause

    def is_named(self, name: str) -> bool:
        return self.name == job_name(name)

    @property
    def phase(self) -> str:
        if self.state in ("done", "failed", "killed", "limit", "lost", "deleted", "forgotten"):
            return "ended"
        return "waiting" if set(self.state) & set("qw") else "active"

    @property
    def hosts(self) -> tuple[str, ...]:
        return ()  # qstat names only the job's first machine

    @property
    def is_stuck(self) -> bool:
        return "E" in self.state or self.reason.startswith(STUCK)

    @property
    def is_suspended(self) -> bool:
        return bool(set(self.state) & set("sST"))

    @property
    def is_deferred(self) -> bool:
        return self.phase == "waiting" and "R" in self.state

    @property
    def end(self) -> str:
        return self.state

    def why_it_waits(self, *, has_run: bool = False) -> str:
        again = "it is to be started again" if self.is_deferred else ""
        error = f"it failed to start and is held: qmod -cj {self.job_id} lets it go" if "E" in self.state else ""
        held = "it is held: qrls lets it go, unless it waits for another job" if "h" in self.state else ""
        said = error or held or again or "the scheduler has not found a place for it yet"
        known = f"; {self.reason}" if self.reason else ""
        return f"Grid Engine job {self.job_id} pending: {said}{known} ({self.state})"

    def how_it_ended(self, user: str = "") -> str:
        sentence = {
            "done": "the job is over",
            "failed": "its batch script failed",
            "killed": f"its batch script was killed{by_signal(self.code, 128)}",
            "limit": "its time limit was reached",
            "lost": "one of its hosts failed",
            "deleted": f"it was deleted by {self.by or 'somebody'}",
        }.get(self.state, "it was deleted or lost: no queue has it, and the accounting (qacct) no record of its end")
        if self.state == "failed" and self.code:
            sentence += f" with exit code {self.code}"
        known = next((said for words, _, said in ENDS if words in self.failed), "")
        own = f" ({self.failed})" if self.failed else ""
        return f"Grid Engine job {self.job_id}: {known or sentence}{own}"


def job_name(name: str) -> str:
    """Return the name for the job of a run or sweep. It has a prefix, because Grid Engine refuses a name that begins
    with a digit.
    """
    return name if NAME.match(name) else f"orch-{name}"


def own_number(job_id: str) -> tuple[str, str]:
    """Return the number of a job, and Grid Engine's number of its task ("" for a job without tasks)."""
    number, _, task = job_id.partition("_")
    return number, str(int(task) + 1) if task else ""


def number_of(number: str, task: str) -> str:
    """Return orch's number of a job, from Grid Engine's numbers of the job and the task."""
    return f"{number}_{int(task) - 1}" if task.isdecimal() and int(task) else number


def parse_qstat(text: str) -> list[JobLine]:
    """Return the jobs in the output of `qstat -xml -g d`. A job in an unknown form is left out."""
    jobs = []
    for entry in re.findall(r"<job_list\b[^>]*>(.*?)</job_list>", text, re.DOTALL):
        fields = {tag: html.unescape(value.strip()) for tag, value in re.findall(r"<(\w+)[^>]*>([^<]*)</\1>", entry)}
        if fields.get("JB_job_number", "").isdecimal() and fields.get("state"):
            jobs.append(JobLine(
                number_of(fields["JB_job_number"], fields.get("tasks", "")), fields["state"], fields.get("JB_name", ""),
                start=fields.get("JAT_start_time", ""), nodes=fields.get("queue_name", "").partition("@")[2],
            ))  # fmt: skip
    return jobs


def parse_reason(text: str) -> str:
    """Return a sentence with the reason that `qstat -j` prints for a waiting job; "" if it prints none."""
    error = re.search(r"^error reason\s+\d*:\s*(.*)", text, re.MULTILINE)
    if error:
        return error[1].strip()
    _, begun, said = text.partition("scheduling info:")
    if not begun or "turned off" in said:
        return ""
    for pattern, sentence in REASONS:
        if (found := re.search(pattern, said)) is not None:
            line = next(line.strip() for line in said.splitlines() if found[0].splitlines()[0] in line)
            return f"{sentence}: {line}"
    return next((line.strip() for line in said.splitlines() if line.strip()), "")


def parse_qacct(text: str) -> list[JobLine]:
    """Return the ended jobs in the output of `qacct -j`, the newest last. If the job was started again after a record,
    that record is left out.
    """
    return [_ended(record) for record in records(text) if not _is_to_continue(record)]


def records(text: str) -> Iterator[Mapping[str, str]]:
    """Yield the accounting's records of whole jobs. Records of single processes on other hosts are left out."""
    for part in re.split(r"^=+$", text, flags=re.MULTILINE):
        fields = dict(re.findall(r"^(\w+)[ \t]+(\S.*?)\s*$", part, re.MULTILINE))
        if fields.get("jobnumber", "").isdecimal() and fields.get("pe_taskid", "NONE") == "NONE":
            yield fields


def _code(record: Mapping[str, str]) -> int | None:
    """Return the exit code of the script from a record. If signal N ended the script, the record has 128 + N and the
    signal's name.
    """
    word = record.get("exit_status", "").partition(" ")[0]
    return int(word) if word.isdecimal() else None


def _is_to_continue(record: Mapping[str, str]) -> bool:
    return _code(record) == RESCHEDULED or "rescheduling" in record.get("failed", "")


def _ended(record: Mapping[str, str]) -> JobLine:
    code = _code(record)
    failed = record.get("failed", "0").partition(":")[2].strip()
    by = record.get("deleted_by", "NONE")
    state = next((state for words, state, _ in ENDS if words in failed), "")
    if by not in ("NONE", ""):
        state = "deleted"
    elif not state:
        state = "killed" if failed else "failed" if code else "done"
    return JobLine(
        number_of(record["jobnumber"], record.get("taskid", "")), state, record.get("jobname", ""),
        nodes=record.get("hostname", ""), by=by if state == "deleted" else "", code=code, failed=failed,
    )  # fmt: skip


def parse_use(text: str, name: str) -> JobUse | None:
    """Return the resources in the newest record of a job. They cover all hosts only if the site's accounting adds them
    up.
    """
    found = None
    for record in records(text):
        if record.get("jobname") == job_name(name):
            found = record
    if found is None:
        return None
    ended = _ended(found)
    slots = found.get("slots", "")
    return JobUse(
        ended.job_id, ended.state, _number(found.get("ru_wallclock", "")) or 0.0, None,
        int(slots) if slots.isdecimal() else 0, _number(found.get("cpu", "")), bytes_of(found.get("maxvmem", "")), None,
    )  # fmt: skip


def _number(text: str) -> float | None:
    """Return the number in `12.5` or `12.5s`; None for any other text."""
    match = re.match(r"\d+(?:\.\d+)?", text)
    return float(match[0]) if match else None


def bytes_of(text: str) -> int | None:
    """Convert a size such as `1.5G` or `3.141GB` to a number of bytes. Return None for any other text."""
    match = re.match(r"(\d+(?:\.\d+)?)\s*([KMGT]?)", text)
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")) if match else None
