"""The testbed's hosts and the machine around them change nothing of each other's /etc and /dev."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

from tests.cluster.control import Control

SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=30")


def test_accounts_made_on_the_machine_change_nothing_on_the_hosts(testbed: Control) -> None:
    """`useradd` replaces the machine's /etc/passwd by another file, as the scripts of packages do."""
    name = f"orch-test-{secrets.token_hex(3)}"
    try:
        subprocess.run(["useradd", "--no-create-home", "--system", name], check=True, capture_output=True)
        assert testbed.output("n1", "id", "-un") == "alice"
        assert testbed.run("n1", "id", name).code == 1
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)
    assert testbed.output("ctl", "ssh", *SSH, "n1", "id -un") == "alice"


def test_damage_in_a_hosts_etc_and_dev_stays_there_until_it_is_booted(testbed: Control) -> None:
    before = {path: path.lstat() for path in map(Path, ("/etc/passwd", "/etc/hosts", "/dev/null", "/dev/ptmx"))}
    testbed.output(
        "n2", "sh", "-c", "rm /etc/passwd /etc/hosts /dev/null /dev/ptmx; touch /etc/mark /dev/mark", user="root"
    )
    assert {path: path.lstat() for path in before} == before
    assert not any(Path(folder, "mark").exists() for folder in ("/etc", "/dev"))
    assert testbed.output("n1", "id", "-un") == "alice"
    testbed.crash("n2")
    testbed.boot("n2")
    assert (
        testbed.output("ctl", "ssh", *SSH, "n2", "id -un >/dev/null; ls /etc/mark /dev/mark 2>/dev/null; id -un")
        == "alice"
    )
