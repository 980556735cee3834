"""The kinds of event in a run's events.jsonl files: written on nodes and on the controlling side, read in one place.

A reader takes an event of a kind that it does not know for none, so that an older orch reads a newer one's runs.
"""

from __future__ import annotations


class EventKind:
    """Names every kind of event; plain strings, for Python 3.9 has no StrEnum."""

    # The controlling side: <run>/events.jsonl; these have no `node`.
    SNAPSHOT = "snapshot"  # the code was copied: how much, its hash, what git says of it
    QUEUED = "held"  # by orch itself: the supervisor starts it when its time has come
    DROPPED = "dropped"  # it is not to be started any more: `reason`
    ENVIRONMENT = "environment"  # of node `of`: its `folder` on `host`, whether it had to be `made`, the `seconds`
    SUBMITTED = "submitted"  # the backend said that every agent, or the job, was handed over
    SUBMIT_INTERRUPTED = "submit_interrupted"  # nobody is at its submit any more, though that process may live on
    SUBMIT_FAILED = "submit_failed"  # it was refused, or a relaunch was given up: `reason`
    CLOCK = "clock"  # the clock of node `of` is `ahead` seconds, measured at its `start`
    FOUND_LOST = "found_lost"  # not all agents will ever report: `reason`
    RELAUNCH = "starting_again"  # another start of the agents was decided on; by Slurm's requeue, node 0 says so
    REPLACED = "replaced"  # a spare took the place of a lost host
    GOING_ON_WITHOUT = "going_on_without"  # a relaunch with fewer nodes: `hosts` are left out
    WAITING_FOR_HOSTS = "waiting_for_hosts"  # a relaunch waits for `hosts` to come back: `why`
    CANCEL = "cancel"  # somebody asked for the run's end; a search with its `reason`
    COLLECTED = "collected"  # a checkpoint was copied here
    LEFT_BEHIND = "left_behind"  # what could not be brought back, or not be removed from a node
    OUTPUTS_LEFT = (
        "outputs_left"  # files of node `left` that are not here: `host`, `folder`, `files`, `bytes`, `reason`
    )
    OUTPUTS_BROUGHT = "outputs_brought"  # and now they are
    CLEANED_UP = "swept"  # what was left of the run was ended: by the controlling side, and by each agent for its node

    # A node's agent: nodes/N/events.jsonl.
    SLURM_JOB = "slurm_job"  # the job's number and hosts, at each start by Slurm
    AGENT_STARTED = "agent_started"  # the agent's pid, host and start; the node's cores and GPUs
    REACHED_LEADER = "reached_leader"  # it has joined node 0's gang, at `addr`
    CANT_REACH = "cant_reach"  # the node has not joined node 0's gang for 5 s: `why`
    CONTAINER = "container"  # what its launcher runs in
    LAUNCHER_IMPORTED = "launcher_imported"  # the launcher is up: the torch version, the seconds
    LAUNCHER_STARTED = "launcher_started"  # the ranks' pids
    LAUNCHER_LOG_ERROR = "launcher_log_error"  # a rank's output can't be written
    REPORT_FAILED = "launcher_report_failed"  # an error in the details of a rank's end: `what`, `error`
    LAUNCHER_KILLED = "launcher_killed"  # its ranks did not end in time
    LAUNCHER_GONE = "launcher_gone"  # it ended unasked: its exit code, its last words
    STARTED = "started"  # the node's ranks of an attempt
    FIRST_STEPS = (
        "first_steps"  # of rank 0: the step that it `loaded`, its first two `steps`, or the step that it `saved` first
    )
    SLEPT = "slept"  # the leader did not run for so many seconds: suspended, or paused
    SAMPLING_FAILED = "sampling_failed"  # how busy the node is can't be written, or not be looked at: `reason`
    METRICS_UNREAD = "metrics_unread"  # a file of metrics can't be read, or the rest of it: `path`, `reason`
    STALL = "stall"  # a rank was silent for half of its limit; `full`: the leader counts the rank as hung
    RANK_EXIT = "rank_exit"  # the code or signal of one rank
    SIGNAL = "signal"  # the agent was sent one; `cancelled` where a cancel is recorded
    TROUBLE = "trouble"  # the launcher can't do its work
    DISK_FULL = "disk_full"  # `path` can't be written
    GAVE_UP = "gave_up"  # the agent left without the leader's word
    STRANGERS = "strangers"  # connections that did not prove to be of this run, by address; after each doubling
    AGENT_ENDED = "agent_ended"  # the agent's last words

    # Node 0's, as the gang's leader.
    LISTENING = "listening"  # the port of the gang, and the addresses
    JOINED = "joined"  # a node is in
    LOST_NODE = "lost_node"  # a node's connection is gone or silent; `slept`: the leader's pause before that
    HANDED_OVER = "handed_over"  # nodes `to` were given what an attempt goes on from
    GO = "go"  # an attempt's ranks are bound and told to start
    STOPPING = "stopping"  # the ranks were asked to stop at a step boundary
    TIME_LIMIT = "time_limit"  # the job's own limit was reached
    UNUSED = "unused"  # all nodes have been idle for as long as the job's `idle` allows: `seconds`, `use`
    USED = "used"  # node `by` is idle no more
    MOVED = "moved"  # a rank that counted as hung has moved on
    FOLDER_LOST = (
        "folder_lost"  # node `of` has lost the run's folder: `path` on `host` was removed, `with_heartbeats` or without
    )
    UNJOINED = "unjoined"  # `words`: which ranks the others wait for at their start; empty once a rank computes again
    STACKS = "stacks"  # what the ranks were doing when one hung
    ATTEMPT_FAILED = "attempt_failed"  # its culprit and its cause
    RESTART = "restart"  # the same agents start the ranks again
    SECOND_COPY_FAILED = "second_copy_failed"  # a copy to node 1 failed; no other is tried in this attempt
    GANG_ENDED = "gang_ended"  # how the leader ended the gang


KINDS = frozenset(value for name, value in vars(EventKind).items() if name.isupper())
