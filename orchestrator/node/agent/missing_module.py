"""Reports a module that a rank could not import: the nodes on which it is missing, and their interpreters. The module
does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.protocol.hostlist import in_words, nodes_in_words
from orchestrator.protocol.rank_reports import RankEnd, missing_module_in


class Lacking(NamedTuple):
    """A node on which a module is missing, with the node's interpreter."""

    host: str
    python: str  # the interpreter; "" if it is not known


def missing_module_of(exit_report: RankEnd) -> str:
    """Return the top-level module that a rank failed to import when it ended; "" if it ended for another reason."""
    error = exit_report.error
    return missing_module_in(error.message or "") if error is not None and error.type == "ModuleNotFoundError" else ""


def missing_in_words(module: str, nodes: Mapping[int, Lacking], nnodes: int) -> str:
    """Return a text that lists where the module is missing: `... on all 3 machines (n1, n2, n3); python there: ...`."""
    hosts = list(dict.fromkeys(each.host for each in nodes.values()))
    if len(nodes) < nnodes:
        where = nodes_in_words([(node, each.host) for node, each in sorted(nodes.items())])
        where += ", and not on the others" if nnodes - len(nodes) > 1 else ", and not on the other"
    else:
        where = f"all {len(hosts)} machines ({in_words(hosts)})" if len(hosts) > 1 else f"{hosts[0]}"
    return f"the module {module} is missing on {where}{_pythons_in_words(nodes)}"


def _pythons_in_words(nodes: Mapping[int, Lacking]) -> str:
    hosts: dict[str, list[str]] = {}
    for each in nodes.values():
        if each.python and each.host not in hosts.setdefault(each.python, []):
            hosts[each.python].append(each.host)
    if len(hosts) < 2:
        return "".join(f"; python there: {python}" for python in hosts)
    return "; python there: " + "; ".join(f"{python} ({in_words(names)})" for python, names in hosts.items())
