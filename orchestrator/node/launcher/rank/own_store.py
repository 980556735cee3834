"""Lets a program serve its own store at a port other than its rank's MASTER_PORT.

orch sets `TORCHELASTIC_USE_AGENT_STORE=True`. With this setting, torch assumes that another process serves the store,
and every rank only connects to it. But orch serves a store only at MASTER_PORT. Tutorials choose another port, such as
`os.environ["MASTER_PORT"] = "12355"` or `tcp://localhost:23456`, mostly in processes that they spawn. Rank 0 must serve
the store at that port. Older versions of torch ignore the port, so all processes would wait for a store that nobody
serves. Newer versions let rank 0 serve the store if the port differs from MASTER_PORT. They too would wait if the
program has changed MASTER_PORT to the same port.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from orchestrator.node.launcher.rank.after_import import after_import

FLAG, ADDR, PORT = "TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT"
ROOT = __file__[: -len("/orchestrator/node/launcher/rank/own_store.py")]  # node.pyz
_IN_A_CHILD = """import sys
sys.path.insert(0, {root!r})
try:
    from orchestrator.node.launcher.rank.own_store import tell_stores_apart
    tell_stores_apart({served!r})
except (ImportError, OSError):
    pass  # the run's folder was removed; without it the process behaves as without orch
finally:
    sys.path.remove({root!r})
"""


def tell_stores_apart(served: Mapping[str, str] | None = None) -> None:
    """Make torch use the launcher's store only if a program connects to the port of this store. This applies to this
    process and to processes that it spawns.

    `served` has the variables that describe the launcher's store. By default they are read from the environment.
    """
    found = {name: (os.environ if served is None else served).get(name, "") for name in (FLAG, ADDR, PORT)}
    if found[FLAG] == "True":
        after_import("torch.distributed.rendezvous", functools.partial(_change_torch, found))
        after_import("multiprocessing.util", functools.partial(_change_multiprocessing, found))


def _change_torch(served: Mapping[str, str], rendezvous: ModuleType) -> None:
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None:
        return

    @functools.wraps(create)
    def create_store(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if str(port) != served[PORT]:
            with _environment({FLAG: ""}):
                return create(hostname, port, *args, **kwargs)
        # The launcher's store may listen at only one address, although the program connects to localhost.
        with _environment(served):
            return create(served[ADDR], port, *args, **kwargs)

    vars(rendezvous)["_create_c10d_store"] = create_store


def _change_multiprocessing(served: Mapping[str, str], util: ModuleType) -> None:
    """Make multiprocessing apply this module's change to torch in each process that it spawns, because such a process
    is a new interpreter.
    """
    spawn = util.spawnv_passfds
    begin = _IN_A_CHILD.format(root=ROOT, served=dict(served))

    @functools.wraps(spawn)
    def spawnv_passfds(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> Any:
        words = list(args)
        if "-c" in words[:-1] and "resource_tracker" not in str(words[-1]):
            code = words.index("-c") + 1
            words[code] = begin + words[code]
        return spawn(path, words, passfds)

    vars(util)["spawnv_passfds"] = spawnv_passfds


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block. An empty value removes a variable."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
