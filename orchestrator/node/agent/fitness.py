"""Decides from the launchers' reports whether an attempt's ranks can start on all nodes. The module does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Callable, NamedTuple

from orchestrator.node.agent.missing_module import Lacking, missing_in_words
from orchestrator.node.agent.roster import Roster
from orchestrator.node.container.argv import odd_image, short
from orchestrator.protocol.checkpoints.checksum import Algorithm, agreed
from orchestrator.protocol.messages import Ready
from orchestrator.protocol.task import NodeTask


class Unfit(NamedTuple):
    """The reason why no rank can start. If one node causes it, `node` names this node."""

    reason: str
    node: int | None = None


def unfit(task: NodeTask, ready: Mapping[int, Ready], roster: Roster) -> Unfit | None:
    """Return why the ranks can't start; None if they can. If several nodes have the same problem, the text names them
    together.
    """
    together: dict[str, list[int]] = {}
    for node, each in sorted(ready.items()):
        if each.unfit:
            together.setdefault(each.unfit, []).append(node)
    if together:
        return Unfit("; ".join(f"{roster.names(nodes)}: {why}" for why, nodes in together.items()))
    if lacking := [node for node, each in ready.items() if each.missing]:
        return Unfit(where_missing(task, ready[lacking[0]].missing, lacking, ready, roster.host_of), lacking[0])
    images = {node: each.image or "" for node, each in ready.items()}
    if (odd := odd_image(images)) is None:
        return None
    usual = next(each for each in images.values() if each and each != images[odd])
    image = task.container.image if task.container else "image"
    return Unfit(
        f"{roster.names([odd])}: its {image} is {short(images[odd])}, and the other nodes have {short(usual)}; "
        "pull or load the same one everywhere, or set container.pull: always"
    )


def where_missing(
    task: NodeTask, module: str, nodes: Collection[int], ready: Mapping[int, Ready], host_of: Callable[[int], str]
) -> str:
    """Return a text that lists the nodes on which a module is missing, with their interpreters."""
    lacking = {node: Lacking(host_of(node), ready[node].python if node in ready else "") for node in sorted(set(nodes))}
    return missing_in_words(module, lacking, task.nnodes)


def checkpoint_to_resume(ready: Mapping[int, Ready]) -> str:
    """Return the name of node 0's newest checkpoint, from which the attempt resumes; "" if node 0 has no checkpoint."""
    return next((name for name, _ in ready[0].checkpoints), "") if 0 in ready else ""


def nodes_lacking_checkpoint(ready: Mapping[int, Ready]) -> list[int]:
    """Return the nodes that lack node 0's checkpoint. A node also lacks the checkpoint if its own checkpoint of the
    same name has different contents.
    """
    wanted = ready[0].checkpoints[:1]
    return sorted(node for node, each in ready.items() if wanted and wanted[0] not in each.checkpoints)


def checksum_for(task: NodeTask, ready: Mapping[int, Ready]) -> Algorithm:
    """Return the hash algorithm for the checkpoints that the ranks write.

    The Python of a spare node may lack an algorithm that the other nodes have. So a run with spares uses the algorithm
    that every Python has.
    """
    return Algorithm.SHA256 if task.has_spares else agreed([each.checksums for each in ready.values()])
