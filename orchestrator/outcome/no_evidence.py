"""The kinds of events that say nothing about how a run ended. Every other kind is read by a rule of this package."""

from __future__ import annotations

from orchestrator.protocol.events import EventKind as Kind

NO_EVIDENCE = frozenset({
    # what was done before the ranks started, and with what
    Kind.SNAPSHOT, Kind.QUEUED, Kind.ENVIRONMENT, Kind.SUBMITTED, Kind.NOT_RESTORED, Kind.SLURM_JOB,
    Kind.CLOCK, Kind.BATCH_JOB, Kind.CANT_REACH, Kind.STRANGERS, Kind.CONTAINER, Kind.LAUNCHER_IMPORTED,
    Kind.LAUNCHER_STARTED, Kind.REACHED_LEADER, Kind.LISTENING, Kind.HANDED_OVER,
    # how the next start gets its machines, which it has decided by then
    Kind.REPLACED, Kind.WAITING_FOR_HOSTS, Kind.START_PROBLEM,
    # what is observed of ranks that run: the leader blames a rank by an exit report of its own
    Kind.FIRST_STEPS, Kind.STALL, Kind.MOVED, Kind.STACKS, Kind.UNJOINED, Kind.UNUSED, Kind.USED,
    Kind.TIME_LIMIT,
    # what was lost without an effect on the ranks
    Kind.LAUNCHER_LOG_ERROR, Kind.REPORT_FAILED, Kind.LAUNCHER_KILLED, Kind.LAUNCHER_GONE, Kind.SAMPLING_FAILED,
    Kind.METRICS_UNREAD, Kind.DISK_FULL, Kind.SECOND_COPY_FAILED,
    # files that are copied here
    Kind.LEFT_BEHIND, Kind.OUTPUTS_LEFT, Kind.OUTPUTS_BROUGHT,
})  # fmt: skip
