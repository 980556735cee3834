"""The kinds of events in a run's events.jsonl files, which nodes and the submitting machine write.

A reader ignores events of unknown kinds, so that an older orch can read a newer one's runs.
"""

from __future__ import annotations


class EventKind:
    """The names of all kinds of events. Plain strings, because Python 3.9 has no StrEnum."""

    # On the submitting machine, in <run>/events.jsonl. These events have no `node`.
    SNAPSHOT = "snapshot"  # the code was copied: its size, its hash, and its state in git
    QUEUED = "held"  # orch itself holds the run; the supervisor starts it later
    DROPPED = "dropped"  # the run will not be started any more: `reason`
    ENVIRONMENT = "environment"  # on node `of`: its `folder` on `host`, whether it had to be `made`, the `seconds`
    SUBMITTED = "submitted"  # the backend reported that every agent, or the job, was handed over
    NOT_RESTORED = "not_restored"  # a later start lacks parts of its submit's surroundings: `what`
    SUBMIT_FAILED = "submit_failed"  # the submit was refused, or a relaunch was given up: `reason`
    CLOCK = "clock"  # the clock of node `of` is `ahead` seconds, measured at its `start`
    FOUND_LOST = "found_lost"  # not all agents will ever report: `reason`
    RELAUNCH = "starting_again"  # another start of the agents was decided; for Slurm's requeue, node 0 writes this
    REPLACED = "replaced"  # a spare replaced a lost host
    GOING_ON_WITHOUT = "going_on_without"  # a relaunch uses fewer nodes, without `hosts`
    WAITING_FOR_HOSTS = "waiting_for_hosts"  # a relaunch waits for `hosts` to return: `why`
    CANCEL = "cancel"  # the run's end was requested; by a search with its `reason`
    COLLECTED = "collected"  # a checkpoint was copied to this machine
    LEFT_BEHIND = "left_behind"  # files that could not be copied here, or not be removed from a node
    OUTPUTS_LEFT = (
        "outputs_left"  # files of node `left` that are not here: `host`, `folder`, `files`, `bytes`, `reason`
    )
    OUTPUTS_BROUGHT = "outputs_brought"  # these files are here now
    CLEANED_UP = "swept"  # leftovers of the run were ended: by the submitting machine, and by each agent for its node

    # On a node's agent, in nodes/N/events.jsonl.
    SLURM_JOB = "slurm_job"  # the job's number and hosts, at each start by Slurm
    BATCH_JOB = "batch_job"  # the same, at each start by another scheduler
    AGENT_STARTED = "agent_started"  # the agent's pid, host and start; the node's cores and GPUs
    REACHED_LEADER = "reached_leader"  # the node has joined node 0's gang, at `addr`
    CANT_REACH = "cant_reach"  # the node has not joined node 0's gang for 5 s: `why`
    CONTAINER = "container"  # the container in which the launcher runs
    LAUNCHER_IMPORTED = "launcher_imported"  # the launcher is ready: the torch version, the seconds
    LAUNCHER_STARTED = "launcher_started"  # the ranks' pids
    LAUNCHER_LOG_ERROR = "launcher_log_error"  # a rank's output can't be written
    REPORT_FAILED = "launcher_report_failed"  # an error in the details of a rank's end: `what`, `error`
    LAUNCHER_KILLED = "launcher_killed"  # its ranks did not end in time
    LAUNCHER_GONE = "launcher_gone"  # the launcher ended unexpectedly: its exit code, its last words
    STARTED = "started"  # the node's ranks of an attempt were started
    FIRST_STEPS = (
        "first_steps"  # of rank 0: the step that it `loaded`, its first two `steps`, or the step that it `saved` first
    )
    SLEPT = "slept"  # the leader did not run for this many seconds: suspended, or paused
    SAMPLING_FAILED = "sampling_failed"  # the use of the node can't be measured or written: `reason`
    METRICS_UNREAD = "metrics_unread"  # a file of metrics, or the rest of it, can't be read: `path`, `reason`
    STALL = "stall"  # a rank was silent for half of its limit; `full`: the leader counts the rank as hung
    RANK_EXIT = "rank_exit"  # the exit code or signal of one rank
    SIGNAL = "signal"  # the agent received a signal; `cancelled` if a cancel is recorded
    TROUBLE = "trouble"  # the launcher can't do its work
    DISK_FULL = "disk_full"  # `path` can't be written
    GAVE_UP = "gave_up"  # the agent left without hearing from the leader
    # connections, by address, that failed to prove that they belong to this run; after each doubling
    STRANGERS = "strangers"
    AGENT_ENDED = "agent_ended"  # the agent's last event

    # On node 0, as the gang's leader.
    LISTENING = "listening"  # the gang's port and addresses
    JOINED = "joined"  # a node has joined
    LOST_NODE = "lost_node"  # a node's connection is gone or silent; `slept`: the leader's pause before that
    HANDED_OVER = "handed_over"  # nodes `to` received the checkpoint from which an attempt continues
    GO = "go"  # an attempt's ranks are assigned and told to start
    STOPPING = "stopping"  # the ranks were asked to stop at a step boundary
    TIME_LIMIT = "time_limit"  # the job's own limit was reached
    UNUSED = "unused"  # all nodes have been idle for as long as the job's `idle` allows: `seconds`, `use`
    USED = "used"  # node `by` is not idle any more
    MOVED = "moved"  # a rank that counted as hung has continued
    FOLDER_LOST = (
        "folder_lost"  # node `of` has lost the run's folder: `path` on `host` was removed, `with_heartbeats` or without
    )
    # `words`: the ranks for which the others wait at their start; empty when a rank computes again
    UNJOINED = "unjoined"
    STACKS = "stacks"  # the stacks of the ranks when one hung
    ATTEMPT_FAILED = "attempt_failed"  # the attempt's culprit and cause
    RESTART = "restart"  # the same agents start the ranks again
    SECOND_COPY_FAILED = "second_copy_failed"  # a copy to node 1 failed; no further copy is tried in this attempt
    GANG_ENDED = "gang_ended"  # how the leader ended the gang


KINDS = frozenset(value for name, value in vars(EventKind).items() if name.isupper())
