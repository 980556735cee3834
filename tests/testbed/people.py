"""The hosts' users: alice, bob and root, known on every host, each with a home per host and SSH keys that work."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.testbed.hosts import OWN
from tests.testbed.layout import PEOPLE, Cluster, Person, address
from tests.testbed.machine import call

ROOT = Person("root", 0)


def write_accounts(cluster: Cluster) -> None:
    """The hosts' passwd, group and hosts files: the machine's and ours. The machine's own stay as they are."""
    etc = cluster.root / "etc"
    etc.mkdir(parents=True)
    names, numbers = {each.name for each in PEOPLE}, {str(each.uid) for each in PEOPLE}
    for file in ("passwd", "group"):
        lines = [line.split(":") for line in Path("/etc", file).read_text().splitlines()]
        kept = [fields for fields in lines if fields[0] not in names and fields[2] not in numbers]
        for fields in kept:
            if file == "group" and fields[0] == "docker":  # whoever is in it may use the node's daemon
                fields[3] = ",".join(sorted(names))
        if file == "passwd":
            kept += [[each.name, "*", str(each.uid), str(each.uid), "", each.home, "/bin/bash"] for each in PEOPLE]
        else:
            kept += [[each.name, "x", str(each.uid), ""] for each in PEOPLE]
        (etc / file).write_text("".join(":".join(fields) + "\n" for fields in kept))
    lines = ["127.0.0.1 localhost", *(f"{address(host)} {host}" for host in cluster.hosts)]
    (etc / "hosts").write_text("".join(f"{line}\n" for line in lines))


def write_keys(cluster: Cluster) -> None:
    """A key for every host and every user, and the known_hosts that knows all hosts."""
    keys = cluster.root / "keys"
    keys.mkdir(mode=0o700)
    for name in (*cluster.hosts, *(each.name for each in (*PEOPLE, ROOT))):
        make_key(keys / name, name)
    lines = [f"{host},{address(host)} {public(keys / host)}" for host in cluster.hosts]
    (keys / "known_hosts").write_text("".join(f"{line}\n" for line in lines))


def make_key(path: Path, comment: str) -> None:
    call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def public(key: Path) -> str:
    """Type and text of the public key, without its comment."""
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


def furnish(cluster: Cluster, host: str) -> None:
    """The host's own folders, and in them a home for everybody."""
    folder = cluster.folder(host)
    for name in OWN:
        (folder / name).mkdir(parents=True)
    for name in ("tmp", "scratch"):
        (folder / name).chmod(0o1777)
    (folder / "srv" / "log").mkdir()
    for person, home in ((ROOT, folder / "root"), *((each, folder / each.home[1:]) for each in PEOPLE)):
        home.mkdir(exist_ok=True)
        # Others may pass through root's home: the interpreter may lie below it.
        home.chmod(0o711 if person is ROOT else 0o700)
        _write_ssh_folder(cluster.root / "keys", person, home)


def refurnish(cluster: Cluster, host: str) -> None:
    """Give alice and bob their homes as they were in the beginning, and remove what else is theirs on the host."""
    folder = cluster.folder(host)
    for path in (each for top in (folder / "tmp", folder / "scratch", cluster.root / "shared") for each in top.iterdir()):
        if path.lstat().st_uid in {each.uid for each in PEOPLE}:
            _remove(path)
    for person in PEOPLE:
        home = folder / person.home[1:]
        for path in home.iterdir():
            _remove(path)
        _write_ssh_folder(cluster.root / "keys", person, home)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _write_ssh_folder(keys: Path, person: Person, home: Path) -> None:
    folder = home / ".ssh"
    folder.mkdir(mode=0o700)
    for source, target in (
        (person.name, "id_ed25519"),
        (f"{person.name}.pub", "id_ed25519.pub"),
        (f"{person.name}.pub", "authorized_keys"),
        ("known_hosts", "known_hosts"),
    ):
        shutil.copy(keys / source, folder / target)
        (folder / target).chmod(0o600)
    for path in (home, folder, *folder.iterdir()):
        os.chown(path, person.uid, person.uid)
