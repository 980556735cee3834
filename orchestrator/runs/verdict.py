"""Decides how a run ended and who is to blame, by pure rules over its events, each with its message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.protocol.events import EventKind
from orchestrator.protocol.gpu_errors import gpu_error_in, gpu_error_of
from orchestrator.protocol.hostlist import in_words, nodes_in_words
from orchestrator.protocol.quantities import size
from orchestrator.protocol.restart import progress_of
from orchestrator.runs.state import (
    Cause,
    Event,
    NodeState,
    NodeStatus,
    Outcome,
    Verdict,
    how_it_ended,
    member_of,
)

MEMORY = ("allocated", "reserved", "total")  # fields of an error file, in bytes
_EXIT_OF_ARGPARSE = 2


def verdict_of(
    own: list[Event],
    by_node: Mapping[int, list[Event]],
    nodes: tuple[NodeState, ...],
    alive: set[int],
    rank0_done: bool,
    *,
    scheduler: str = "",
) -> Verdict | None:
    """Return the verdict when no agent is left that could change it, else None."""
    survivors = tuple(pid for event in _all(by_node, EventKind.AGENT_ENDED) for pid in items(event.get("survivors")))
    ended = [event for event in by_node[0] if event["kind"] == EventKind.GANG_ENDED]
    refused = [event for event in own if event["kind"] == EventKind.SUBMIT_FAILED]
    if refused:
        return Verdict(Outcome.FAILED, Cause.INFRA, refused[-1]["reason"])
    if dropped := [event for event in own if event["kind"] == EventKind.DROPPED]:
        return Verdict(Outcome.CANCELLED, reason=dropped[-1]["reason"])
    gone = any(event["kind"] == EventKind.FOUND_LOST for event in own)  # and leftovers of the agents have been ended
    if any(_may_speak(node, set() if gone else alive) for node in nodes):
        # an agent that is or may be alive has not written its last event, or its first event has not arrived yet
        return None
    started = any(node.state != NodeStatus.WAITING for node in nodes)
    if not started and not gone:
        return _cancelled_before_another_start(own)
    if not (ended and ended[-1]["outcome"] == Outcome.SUCCEEDED):
        from orchestrator.protocol.exits import successful_attempt

        if (attempt := successful_attempt(by_node, rank0_done=rank0_done)) is not None:
            return _with_lacking(_success(by_node, nodes, attempt, survivors), own, by_node)
    cancelled = any(event["kind"] == EventKind.CANCEL for event in own)
    in_vain = [event for event in by_node[0] if event["kind"] == EventKind.GAVE_UP and event["cause"] == "no_progress"]
    if in_vain and not cancelled:  # in this case srun ended the lost nodes after node 0 had left
        reason = str(in_vain[-1]["reason"])
        return Verdict(Outcome.FAILED, Cause.NO_PROGRESS, reason, hint=hint_for(reason, None, None))
    if ended:
        verdict = _of_gang(ended[-1], by_node, nodes, rank0_done, survivors, scheduler=scheduler)
        if verdict.outcome is Outcome.FAILED and verdict.rank is None:
            verdict = _with_better_word(verdict, by_node)
        return _with_lacking(verdict, own, by_node)
    if cancelled:
        return Verdict(Outcome.CANCELLED, survivors=survivors)
    given_up = _all(by_node, EventKind.GAVE_UP)
    # srun ends agents that have not left yet
    no_point = [event for event in given_up if event["cause"] == Cause.NO_PROGRESS]
    leader = [event for event in given_up if event.get("node") == 0 and event["outcome"] == Outcome.FAILED]
    # The other nodes are ended if node 0 is lost, so node 0's reason is the cause of their loss.
    if no_point or leader or (given_up and not any(node.state == NodeStatus.LOST for node in nodes)):
        first = (no_point or leader or given_up)[0]
        outcome = member_of(Outcome, first["outcome"]) or Outcome.FAILED
        reason = first["reason"] or f"{first['cause']} before the ranks were started"
        return Verdict(outcome, _cause_of(first), reason, hint=hint_for(reason, None, None), survivors=survivors)
    words = [_who_was_lost(nodes, own), *(event["reason"] for event in given_up[:1])]
    reason = "; ".join(word for word in words if word)
    return Verdict(Outcome.FAILED, Cause.INFRA, reason, hint=hint_for(reason, None, None), survivors=survivors)


def _cancelled_before_another_start(own: list[Event]) -> Verdict | None:
    """Return the verdict of a cancel before the next start had any agent, as while the run waited for machines."""
    kinds = {event["kind"] for event in own}
    return Verdict(Outcome.CANCELLED) if {EventKind.CANCEL, EventKind.RELAUNCH} <= kinds else None


def _with_better_word(verdict: Verdict, by_node: Mapping[int, list[Event]]) -> Verdict:
    """Return node 0's verdict on a failure that no rank caused, with better information from another node."""
    if word := _word_on_a_sleeper(by_node):
        return replace(verdict, reason=word)
    if word := _word_of_who_never_joined(by_node):
        return replace(verdict, reason=f"{word}; {verdict.reason}", hint=hint_for(word, None, None))
    return verdict


def _word_on_a_sleeper(by_node: Mapping[int, list[Event]]) -> str:
    """Return why another node left node 0, which was suspended meanwhile and knows only that it was left; else ""."""
    if not any(event["kind"] == EventKind.SLEPT for event in by_node[0]):
        return ""
    return next((str(event["reason"]) for event in _all(by_node, EventKind.GAVE_UP) if event.get("node")), "")


def _word_of_who_never_joined(by_node: Mapping[int, list[Event]]) -> str:
    """Return a node's own reason why it could not join, because node 0 knows only that it is missing; else ""."""
    joined = {event.get("joined") for event in by_node[0] if event["kind"] == EventKind.JOINED}
    words = [
        str(event["reason"])
        for event in _all(by_node, EventKind.GAVE_UP)
        if event.get("node") and event["node"] not in joined and event["outcome"] == Outcome.FAILED
    ]
    return words[0] if words else ""


def _may_speak(node: NodeState, alive: set[int]) -> bool:
    """Tell whether the node's agent may still write its last event."""
    if node.state == NodeStatus.WAITING:
        return node.node in alive
    return not node.state.final


def _cause_of(event: Event) -> Cause:
    """Return the cause that a node recorded, or NONE if this version does not know it."""
    return member_of(Cause, event["cause"]) or Cause.NONE


def _success(
    by_node: Mapping[int, list[Event]], nodes: tuple[NodeState, ...], attempt: int, survivors: tuple[int, ...]
) -> Verdict:
    """Return the success of an attempt whose exit codes are all known. A node that is lost later changes nothing."""
    lost = nodes_in_words([(node.node, node.host) for node in nodes if node.state == NodeStatus.LOST])
    reason = f"all ranks ended well; lost after that, and left behind: {lost}" if lost else ""
    reason = "; ".join(filter(None, [reason, _refused_saves(by_node, attempt)]))
    return Verdict(Outcome.SUCCEEDED, reason=reason, attempt=attempt, survivors=survivors)


def _with_lacking(verdict: Verdict, own: list[Event], by_node: Mapping[int, list[Event]]) -> Verdict:
    """Return the verdict with the nodes that this start lacked added to its reason."""
    return replace(verdict, reason="; ".join(filter(None, [verdict.reason, without(own, len(by_node))])))


def _of_gang(
    end: Event,
    by_node: Mapping[int, list[Event]],
    nodes: tuple[NodeState, ...],
    rank0_done: bool,
    survivors: tuple[int, ...],
    *,
    scheduler: str,
) -> Verdict:
    outcome, attempt = end["outcome"], end["attempt"]
    if outcome == Outcome.SUCCEEDED:
        if not rank0_done:
            return Verdict(Outcome.FAILED, Cause.INFRA, "all nodes said done, but rank 0 left no done marker", attempt)
        return _success(by_node, nodes, attempt, survivors)
    if outcome == Outcome.CANCELLED:
        return Verdict(Outcome.CANCELLED, reason=end["reason"], attempt=attempt, survivors=survivors)
    failures = [
        event for event in by_node[0] if event["kind"] == EventKind.ATTEMPT_FAILED and event["attempt"] == attempt
    ]
    known = (Cause.NO_PROGRESS, Cause.NO_RETRY)
    if outcome == Outcome.FAILED and failures and end["cause"] in (failures[-1]["cause"], *known):
        return _blame(failures[-1]["culprit"], end, survivors)
    reason = end["reason"] or {
        Cause.PREEMPTED: _who_stopped(by_node[0], scheduler=scheduler),
        Cause.TIMEOUT: "its time limit was reached",
    }.get(outcome, f"it {outcome}, and what was recorded of why can't be read")
    if outcome in (Cause.PREEMPTED, Cause.TIMEOUT):
        reason = "; ".join(filter(None, [reason, _what_it_lacks(end)]))
    verdict = Verdict(
        Outcome.FAILED, _cause_of(end), reason, attempt, hint=hint_for(reason, None, None), survivors=survivors
    )
    failed = next((node for node in nodes if node.node == end.get("failed_node")), None)
    if failed is None:
        return verdict
    tail = tuple(str(line) for line in items(end.get("tail")))
    words = _of_all_with(failed.node, by_node, nodes) or reason
    return replace(verdict, reason=words, node=failed.node, host=failed.host, tail=tail)


def _of_all_with(failed: int, by_node: Mapping[int, list[Event]], nodes: tuple[NodeState, ...]) -> str:
    """Return the node's problem with all nodes that reported the same; "" if no other node reported it."""
    told = {
        node: str(event.get("reason"))
        for node, events in by_node.items()
        for event in events
        if event["kind"] == EventKind.TROUBLE
    }
    same = [(node.node, node.host) for node in nodes if failed in told and told.get(node.node) == told[failed]]
    return f"{nodes_in_words(same)}: {told[failed]}" if len(same) > 1 else ""


def _who_stopped(events: list[Event], *, scheduler: str) -> str:
    """Return which signal stopped the run, and who sent it, as far as known."""
    names = [str(event["signal"]) for event in events if event["kind"] == EventKind.STOPPING and event.get("signal")]
    if not names:
        return "its ranks stopped at a step boundary, and asked to be started again"
    if not scheduler:
        return f"stopped by {names[0]}, which orch has not sent"
    return f"stopped by {names[0]} from {scheduler}" + (" (time limit near)" if names[0] == "SIGUSR2" else "")


def _what_it_lacks(end: Event) -> str:
    """Return a sentence if a stopped run has no checkpoint with a known step; "" otherwise."""
    saved = progress_of(end)
    if "step" not in end or saved.step >= 0:
        return ""
    return "it can go on from the files that it has written" if saved.saved else "it has saved nothing to go on from"


def _refused_saves(by_node: Mapping[int, list[Event]], attempt: int) -> str:
    """Return how many checkpoints of a successful attempt could not be saved; "" if all were."""
    exits = [
        event for event in _all(by_node, EventKind.RANK_EXIT) if event["rank"] == 0 and event.get("attempt") == attempt
    ]
    saves, failed = (exits[-1].get(name) for name in ("saves", "saves_failed")) if exits else (0, 0)
    return f"{failed} of {saves} checkpoints could not be written, the last one was" if failed else ""


def culprit_in_words(culprit: Event) -> str:
    """Return a sentence on how the first failed rank ended."""
    error = culprit.get("error")
    error = error if isinstance(error, Mapping) and error else None
    how = how_it_ended(culprit.get("code"), culprit.get("signal"))
    if culprit.get("oom") and not culprit.get("worker_killed"):
        how = "SIGKILL, from the kernel: its cgroup ran out of memory"
    what = f"{error['type']}: {error.get('message')}".splitlines()[0][:200] if error and error.get("type") else how
    if what == how and culprit.get("code") == _EXIT_OF_ARGPARSE and (said := _refused_arguments(culprit)):
        what = said
    if culprit.get("oom") and culprit.get("worker_killed"):
        what += "; the kernel killed a process of this rank's cgroup, which ran out of memory"
    where = f"on node {culprit.get('node')} ({culprit.get('host', '?')})"
    if isinstance(early := culprit.get("left_early"), Mapping):
        return _left_early_in_words(early, f"rank {culprit.get('rank')} {where}", culprit.get("rank"))
    if culprit.get("hang"):
        return f"{error.get('message', 'a rank stood still') if error else 'a rank stood still'} {where}"
    rank = culprit.get("failed_rank", culprit.get("rank"))  # `failed_rank` is a rank of another launcher
    return f"rank {rank} {where} ended with {how}{f': {what}' if what != how else ''}"


def _refused_arguments(culprit: Event) -> str:
    """Return why argparse or click refused the command line, from the rank's last line; "" for any other line."""
    last = next((str(line) for line in reversed(items(culprit.get("tail"))) if str(line).strip()), "")
    found = re.fullmatch(r"(?:\S+: error|Error): (.+)", last.strip())
    return found[1][:200] if found else ""


def _left_early_in_words(early: Mapping[str, Any], who: str, rank: Any) -> str:
    """Return a sentence on ranks that ended with 0 while other ranks still waited for them."""
    others = [str(each) for each in items(early.get("ranks")) if each != rank]
    too = f", as rank{'s' * (len(others) > 1)} {in_words(others)} did," if others else ""
    waited = [str(each) for each in items(early.get("waited"))]
    said = str(early.get("said") or "").splitlines()[:1]
    how = f": {said[0][:200]}" if said else ""
    return (
        f"{who} ended with exit code 0{too} while rank{'s' * (len(waited) > 1)} {in_words(waited)} waited for it{how}"
    )


def _blame(culprit: Event, end: Event, survivors: tuple[int, ...]) -> Verdict:
    error, tail = culprit.get("error"), tuple(str(line) for line in items(culprit.get("tail")))
    error = error if isinstance(error, Mapping) and error else None
    lacks = [str(culprit["lacks"])] if culprit.get("lacks") else []  # the nodes that lack a module
    terminal = [line for line in tail if _NO_TERMINAL in line]  # printed by a program that a rank started
    words = " ".join(
        [*lacks, *terminal, *([str(error.get("type")), str(error.get("message"))] if error else tail[-5:])]
    )
    reason = "; ".join([culprit_in_words(culprit), *lacks, *memory_in_words(error), *_kernel_words(culprit)])
    if end["reason"]:
        reason += f"; {end['reason']}"
    if end["cause"] == Cause.CHECKPOINT:
        reason = words = str(end["reason"])
    return Verdict(
        Outcome.FAILED,
        _cause_of(end),
        reason,
        end["attempt"],
        rank=culprit.get("rank"),
        node=culprit.get("node"),
        host=str(culprit.get("host", "?")),
        code=culprit.get("code"),
        signal=culprit.get("signal"),
        error={**{name: error.get(name) for name in ("type", "message", "traceback")}, **error} if error else None,
        tail=tail,
        hint=_hint_of(culprit, words),
        survivors=survivors,
    )


def memory_in_words(error: Mapping[str, Any] | None) -> list[str]:
    """Return the peak GPU memory of the rank's torch if it ran out of memory, as lines."""
    memory = error.get("memory") if error else None
    if not isinstance(memory, Mapping) or not all(isinstance(memory.get(name), int) for name in MEMORY):
        return []
    allocated, reserved, total = (size(memory[name]) for name in MEMORY)
    peak = f"at its peak torch had {allocated} in tensors, and {reserved} of the GPU's {total} reserved"
    snapshot = error.get("snapshot") if error else None
    return [peak, *([f"orch outputs has a snapshot of it, {snapshot}"] if isinstance(snapshot, str) else [])]


def _kernel_words(culprit: Event) -> list[str]:
    """Return the kernel's message about the host's GPU when the rank ended, if any, as lines."""
    said = [str(line) for line in items(culprit.get("kernel"))]
    return [f"the kernel of {culprit.get('host', '?')} said: {said[-1][:300]}"] if said else []


LEFT_EARLY = (
    "every rank must take part in every collective: look for uneven data (drop_last, Join), for an exit on a single "
    "rank (sys.exit, os._exit), and for a handler of TERM that exits with 0"
)


def _hint_of(culprit: Event, words: str) -> str:
    if culprit.get("left_early"):
        return LEFT_EARLY
    gpu_error = gpu_error_of(culprit)
    if culprit.get("worker_killed"):
        why = "memory was short" if culprit.get("oom") else "the kernel does this if memory is short (dmesg shows it)"
        return (
            f"a worker process of that rank was killed; {why}: use fewer workers (num_workers) or ranks per node, a "
            "smaller batch, or more memory for the job (on Slurm: mem)"
        )
    if gpu_error is not None and not culprit.get("oom"):
        return gpu_error.hint
    if hint := _hint_on_module(culprit):
        return hint
    if culprit.get("hang"):
        return "orch stacks RUN shows where each rank of a running attempt stands; set hang: in the job to wait longer"
    return hint_for("MemoryError" if culprit.get("oom") else words, culprit.get("code"), culprit.get("signal"))


def _hint_on_module(culprit: Event) -> str:
    """Return which interpreter lacks a module, and other interpreters; "" if no module is missing."""
    missed = culprit.get("missing")
    if not isinstance(missed, Mapping) or not isinstance(missed.get("module"), str):
        return ""
    module, python = missed["module"], str(missed.get("python"))
    others = ", ".join(str(each) for each in items(missed.get("others")))
    which = "these interpreters there have it" if missed.get("has_it") else "other interpreters there"
    return (
        f"{python} on {culprit.get('host', '?')} has no module {module}"
        f"{f'; {which}: {others}' if others else ''}; choose one with python: in the profile or "
        f"--set profile.python=PATH, install it ({python} -m pip install ...), or put the module into the code folder; "
        "orch doctor -p PROFILE shows each machine's interpreter"
    )


def _who_was_lost(nodes: tuple[NodeState, ...], own: list[Event]) -> str:
    reasons = [str(event.get("reason", "")) for event in own if event["kind"] == EventKind.FOUND_LOST]
    lost = nodes_in_words([(node.node, node.host) for node in nodes if node.state == NodeStatus.LOST])
    if lost and not reasons:
        return f"the agent of {lost} vanished without a word: killed, or its machine went down"
    if not reasons and any(node.state == NodeStatus.ENDED for node in nodes):
        return "the agents ended, but the record of how the attempt ended is lost"
    return (reasons or [""])[-1] or "no agent ever reported"


def without(own: Iterable[Event], nodes: int) -> str:
    """Return which nodes this start lacks; "" if it has all of the plan's."""
    said = [event for event in own if event["kind"] == EventKind.GOING_ON_WITHOUT]
    if not said or said[-1].get("nodes") != nodes:  # the nodes were back before the start
        return ""
    names = in_words(map(str, items(said[-1].get("hosts"))))
    return f"on {said[-1].get('nodes')} of {said[-1].get('of')} nodes, without {names}"


def items(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list, because it may be damaged."""
    return list(value) if isinstance(value, list | tuple) else []


def _all(by_node: Mapping[int, list[Event]], kind: str) -> list[Event]:
    return [event for events in by_node.values() for event in events if event["kind"] == kind]


_NO_TERMINAL = "Inappropriate ioctl for device"
_RULES: tuple[tuple[str, str], ...] = (
    (
        r"is the MTU smaller on the way",
        "give all interfaces on the way the same MTU (ip link), and let ICMP's `fragmentation needed` pass",
    ),
    (
        r"time limit.* came before it had saved|saved nothing to go on from",
        "raise the time limit (time:), or save checkpoints: docs/training.md#your-own-script; if the script saves "
        "into another folder, set checkpoint.dir in the job to that folder",
    ),
    (
        r"setup line \d+ failed.*\b(module|ml): (command )?not found",
        "that node's login shell defines no `module`: let an earlier setup line source the file that defines it, such "
        "as `. /etc/profile.d/modules.sh` or `. /usr/share/lmod/lmod/init/bash`",
    ),
    (
        r"setup line \d+ failed.*(unable to locate a modulefile|module\(s\) are unknown|cannot be loaded as requested)",
        "that node has no module of this name: `module avail` on the node itself lists its modules",
    ),
    (
        r"setup line \d+ failed.*(conda|mamba)(: (command )?not found| init|: CommandNotFoundError)",
        "that node's login shell does not set up conda: let an earlier setup line do it, such as "
        "`. ~/miniconda3/etc/profile.d/conda.sh`; or leave conda out, and set python to the environment's bin/python",
    ),
    (
        r"setup line \d+ failed",
        "try the line on that node, in a login shell as orch does: bash -lc 'THE LINE'; then correct setup: in "
        "the profile",
    ),
    (
        r"Argument list too long",
        "a word of the command, or all variables and words together, are longer than that node's kernel allows: put "
        "the text into a file, and pass the file's name",
    ),
    (
        r"rendezvous ports are taken",
        "ask that user to free them, or set ports: in the profile to a free range (ports: 20000-20100)",
    ),
    (
        r"the launcher can't be started with",
        "set python: in the profile to an interpreter that exists on every node",
    ),
    (
        r"network interface \S+, which the profile names",
        "name an interface that every node has (interface: in the profile), or leave interface out: then orch takes "
        "the interface of the route to node 0",
    ),
    (
        r"can't reach (node|its neighbour)",
        "a firewall, or an address of another network: open the profile's ports, or name addr and interface in it",
    ),
    (
        r"in Lightning, but the product .* does not match the world size",
        "give the Trainer the numbers that orch has started: devices=int(os.environ['LOCAL_WORLD_SIZE']), "
        "num_nodes=int(os.environ['GROUP_WORLD_SIZE'])",
    ),
    (
        r"input \S+ can't be fetched",
        "set the input's source to an address that this node can open, or to a file that every node sees",
    ),
    (
        r"vanished without a word|its agent closed the connection",
        "if nobody killed the agent, the kernel may have, because memory was short (dmesg on that machine shows it): "
        "fewer ranks or workers (num_workers) there, a smaller batch, or more memory for the job",
    ),
    (
        r"Cannot allocate memory|MemoryError|can't allocate memory",
        "the host ran out of memory: fewer ranks per node, or a smaller batch",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "a disk is full: make room in the run directory, or set checkpoint.dir elsewhere",
    ),
    (
        r"Too many open files|Resource temporarily unavailable",
        "a limit of that node: raise ulimit -n (open files) or ulimit -u (processes), or use fewer ranks per node",
    ),
    (
        r"bus error|SIGBUS|unable to (open|write to|mmap) shared memory|/dev/shm",
        "shared memory is too small for the DataLoader: in a container set container.shm, or use fewer workers",
    ),
    (
        r"the module \S+ is missing on",
        "install it there for that python (for a container into its image), or set python in the profile to an "
        "interpreter that has it; orch doctor -p PROFILE shows each machine's",
    ),
    (
        r"ModuleNotFoundError|ImportError|No module named",
        "an import failed: install the package for that python, name another python in the profile "
        "(--set profile.python=PATH), or put the module into the code folder",
    ),
    (
        r"Address already in use|EADDRINUSE",
        "a port is taken: use MASTER_PORT from the environment, don't fix one in the program",
    ),
    (
        r"Timed out|timeout|DistStoreError|wait timeout",
        "a collective timed out: one rank was slow or gone; look at the other ranks' logs (orch logs RUN --all)",
    ),
    (
        r"in a row hit the time limit without",
        "raise time: in the profile, or have the script save checkpoints and resume from them (docs/own-scripts.md)",
    ),
    (r"\bnan\b|not a finite|Loss is nan", "the loss is not a number: lower the learning rate, or check the data"),
    (
        _NO_TERMINAL,
        "the program needs a terminal, and a rank has no terminal: let the command provide one, such as: "
        "script -qec 'python main.py' /dev/null",
    ),
    (r"Permission denied", "this user may not read, write or run a file: check its owner and mode on that node"),
    (
        r"No such file or directory|FileNotFoundError",
        "a file is missing on that node: only the code folder, without ignored files, and inputs are sent elsewhere",
    ),
)


def hint_for(words: str, code: int | None, signal: str | None) -> str:
    """Return one sentence of advice, or "" if no rule matches."""
    if code == 127:
        return "the command was not found on that node: check its name and PATH"
    if code == 126:
        return "the command can't be executed: check its mode and its first line"
    if (gpu_error := gpu_error_in(words)) is not None:
        return gpu_error.hint
    for pattern, advice in _RULES:
        if re.search(pattern, words, re.IGNORECASE):
            return advice
    if signal == "SIGKILL" or code == 137:
        return (
            "if nobody killed the process, the host ran out of memory (dmesg shows it): fewer ranks, or a smaller batch"
        )
    if signal == "SIGBUS":
        return "shared memory is too small for the DataLoader: in a container set container.shm, or use fewer workers"
    if signal in ("SIGSEGV", "SIGABRT", "SIGILL"):
        return "native code crashed: run the program with python -X faulthandler, which shows the line"
    return ""
