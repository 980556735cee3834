"""Changes torch's rendezvous in a rank's own process. Processes that the rank starts need no change.

A rank uses the launcher's store without the change too. But then rank 0 first tries to bind MASTER_PORT itself, and
torch logs that this failed. See LAUNCHER_SERVES in protocol/ranks.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from orchestrator.node.launcher.rank.after_import import after_import
from orchestrator.protocol.ranks import LAUNCHER_SERVES

FLAG, ADDR, PORT = "TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT"


def change_rendezvous(withheld: Mapping[str, str]) -> None:
    """Make this process use the launcher's store at the launcher's port, and only there.

    `withheld` has torchrun's variables of a single rank that got none. If the program joins a process group by `env://`
    all the same, torch gets them at that moment.
    """
    if withheld:
        after_import("torch.distributed.rendezvous", functools.partial(_supply, withheld))
    elif os.environ.get(FLAG) == LAUNCHER_SERVES:
        served = {FLAG: "True", **{name: os.environ.get(name, "") for name in (ADDR, PORT)}}
        after_import("torch.distributed.rendezvous", functools.partial(_tell_stores_apart, served))


def _supply(withheld: Mapping[str, str], rendezvous: ModuleType) -> None:
    handlers = getattr(rendezvous, "_rendezvous_handlers", {})
    if (join := handlers.get("env")) is None:
        return

    @functools.wraps(join)
    def by_environment(url: str, *args: Any, **kwargs: Any) -> Any:
        if "rank=" not in url:  # a program that passes a rank has started its ranks itself
            for name, value in withheld.items():
                os.environ.setdefault(name, value)
        return join(url, *args, **kwargs)

    handlers["env"] = by_environment


def _tell_stores_apart(served: Mapping[str, str], rendezvous: ModuleType) -> None:
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None:
        return

    @functools.wraps(create)
    def create_store(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if str(port) != served[PORT]:
            with _environment({FLAG: ""}):  # a port that another program has taken is an error
                return create(hostname, port, *args, **kwargs)
        # The launcher's store may listen at only one address, although the program connects to localhost.
        with _environment(served):
            return create(served[ADDR], port, *args, **kwargs)

    vars(rendezvous)["_create_c10d_store"] = create_store


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
