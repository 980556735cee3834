"""Reports on which nodes, and for which interpreter, a module that a rank could not import is missing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from orchestrator.protocol.hostlist import in_words, nodes_in_words
from orchestrator.protocol.missing_module import missing_module_in


class Lacking(NamedTuple):
    """A node without the module."""

    host: str
    python: str  # the interpreter; "" if it is not known


def missing_module_of(exit_report: Mapping[str, Any]) -> str:
    """Return the top-level module that a rank lacked when it ended; "" if it ended for another reason."""
    error = exit_report.get("error")
    if not isinstance(error, Mapping) or error.get("type") != "ModuleNotFoundError":
        return ""
    return missing_module_in(str(error.get("message")))


def missing_in_words(module: str, nodes: Mapping[int, Lacking], nnodes: int) -> str:
    """Return where the module is missing, in words: `... on all 3 machines (n1, n2, n3); python there: ...`."""
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
