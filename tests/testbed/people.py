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
    """Write the hosts' /etc: a copy of the machine's, whose accounts and names are completed by those of the testbed.

    Nothing that happens to the machine's /etc afterwards reaches a host. `useradd` there replaces whole files.
    """
    etc = cluster.root / "etc"
    etc.mkdir(parents=True)
    # rsync ends with 24 if a file vanished meanwhile, as lock files do.
    call(["sh", "-c", 'rsync --archive /etc/ "$1" || [ $? = 24 ]', "sh", etc])
    for name in ("ssh", "slurm", "munge"):  # written for the testbed
        shutil.rmtree(etc / name, ignore_errors=True)
    numbered = [(each.name, str(each.uid), each.home) for each in PEOPLE]
    passwd = _others("passwd") + [[name, "*", uid, uid, "", home, "/bin/bash"] for name, uid, home in numbered]
    group = _others("group") + [[name, "x", uid, ""] for name, uid, _ in numbered]
    for fields in group:
        if fields[0] == "docker":  # whose members may use the node's daemon
            fields[3] = ",".join(name for name, _, _ in numbered)
    for file, lines in (("passwd", passwd), ("group", group)):
        (etc / file).write_text("".join(":".join(fields) + "\n" for fields in lines))
    ranges = "".join(f"{each.name}:{each.uid << 16}:65536\n" for each in PEOPLE)  # for rootless containers
    for file in ("subuid", "subgid"):
        (etc / file).write_text(ranges)
    known = ["127.0.0.1 localhost", *(f"{address(host)} {host}" for host in cluster.hosts)]
    (etc / "hosts").write_text("".join(f"{line}\n" for line in known))


def _others(file: str) -> list[list[str]]:
    """The machine's entries, but those that have a name or a number of ours."""
    entries = [line.split(":") for line in Path("/etc", file).read_text().splitlines()]
    taken = {each.name for each in PEOPLE} | {str(each.uid) for each in PEOPLE}
    return [fields for fields in entries if not taken & {fields[0], fields[2]}]


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
    for top in (folder / "tmp", folder / "scratch", cluster.root / "shared"):
        for path in top.iterdir():
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
