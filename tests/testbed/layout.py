"""What a testbed is: its hosts, their addresses, its people, and the one record that says that it stands."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

# Namespaces and addresses are the machine's, so there is one testbed a machine, and one record of it.
RECORD = Path("/run/orch-testbed.json")
REPO = Path(__file__).resolve().parents[2]
MOST_NODES = 1000  # a Linux bridge, the switch, has 1,023 ports


class ClusterError(Exception):
    """A sentence: what can't be done, and what to do about it."""


@dataclass(frozen=True)
class Person:
    """An ordinary user of the hosts; the machine itself does not know them."""

    name: str
    uid: int

    @property
    def home(self) -> str:
        return f"/home/{self.name}"


PEOPLE = (Person("alice", 48001), Person("bob", 48002))


@dataclass(frozen=True)
class Cluster:
    """A testbed as it was asked for. `root` holds all its files; nothing of it is elsewhere but RECORD and `made`."""

    root: Path
    nodes: int = 3
    cpus: int = 8
    gpus: int = 4
    slurm: bool = True
    docker: bool = False
    sge: bool = False
    site: str = ""  # the name in tests/testbed/sites.py of which the nodes are; "" for ordinary ones
    made: tuple[str, ...] = ()  # mount points that `up` had to make on the machine
    owner: tuple[int, int] | None = None  # pid and start time of the tests that it was brought up for

    @property
    def hosts(self) -> tuple[str, ...]:
        """The controller and the nodes: ctl, n1 .. nN."""
        return ("ctl", *self.workers)

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    def known(self, host: str) -> str:
        """The host's name; ClusterError where there is no such host."""
        if host not in self.hosts:
            raise ClusterError(f"there is no host {host}: this testbed has {', '.join(self.hosts)}")
        return host

    def folder(self, host: str) -> Path:
        """What the host keeps through a crash, as its own root sees it: home, root, tmp, scratch, srv, ssh."""
        return self.root / "hosts" / host

    def pid_file(self, host: str) -> Path:
        return self.root / "run" / f"{host}.pid"


def address(host: str) -> str:
    """The host's IPv4 address, in 10.90.0.0/16."""
    number = 1 if host == "ctl" else 10 + int(host[1:])
    return f"10.90.{number >> 8}.{number & 255}"


def state_folder() -> Path:
    """Where `up` puts a testbed's files: $TESTBED, or /tmp/orch-testbed."""
    return Path(os.environ.get("TESTBED") or "/tmp/orch-testbed").resolve()


def is_unwanted() -> bool:
    """Did somebody say TESTBED=0?"""
    return os.environ.get("TESTBED") == "0"


def standing() -> Cluster | None:
    """The testbed that is up on this machine, also a half-built one."""
    try:
        fields = json.loads(RECORD.read_text())
    except FileNotFoundError:
        return None
    owner = tuple(fields["owner"]) if fields["owner"] else None
    return Cluster(**{**fields, "root": Path(fields["root"]), "made": tuple(fields["made"]), "owner": owner})


def claim(cluster: Cluster) -> None:
    """Record the testbed before anything of it is there; ClusterError where another one stands."""
    draft = RECORD.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({**asdict(cluster), "root": str(cluster.root)}))
    try:
        os.link(draft, RECORD)  # whole or not at all, and only one wins
    except FileExistsError:
        there = standing()
        raise ClusterError(
            f"a testbed is up already, in {there.root if there else '?'}: one fits on a machine; "
            "end it with `python -m tests.testbed down`"
        ) from None
    finally:
        draft.unlink()


def release() -> None:
    """Forget the testbed: nothing of it is left."""
    with contextlib.suppress(FileNotFoundError):
        RECORD.unlink()
