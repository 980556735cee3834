"""The testbed in a test's hands: run things on hosts as somebody, break hosts, and look at what is there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.node.system.processes import MARK, Process, end_descendants, identify, send_signal, wait_gone
from tests.patience import PATIENCE
from tests.result import Result
from tests.testbed import cluster as whole
from tests.testbed import hosts, network, people, sites, sshd
from tests.testbed.layout import PEOPLE, REPO, Cluster
from tests.testbed.machine import ENVIRONMENT, wait_until


@dataclass(frozen=True)
class Control:
    """A testbed that stands. Whatever a method breaks is whole again after `undo.close()`, which the fixture calls."""

    cluster: Cluster
    undo: ExitStack = field(default_factory=ExitStack)

    def argv(self, host: str, *command: str, user: str = "alice", **env: str) -> list[str]:
        """What to start for the command to run on the host, in the user's home, with a login's environment."""
        return [*hosts.enter(self.cluster, host, user, env), *command]

    def run(
        self, host: str, *command: str, user: str = "alice", timeout: float = PATIENCE, stdin: str = "", **env: str
    ) -> Result:
        """Run the command to its end, whatever that is."""
        argv = self.argv(host, *command, user=user, **env)
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False, env=ENVIRONMENT
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def output(self, host: str, *command: str, **options: Any) -> str:
        """What the command printed, stripped; it must end with 0. Takes what `run` takes."""
        done = self.run(host, *command, **options)
        assert done.code == 0, f"{command} on {host} ended with {done.code}: {done.err}"
        return done.out.strip()

    def start(self, host: str, *command: str, user: str = "alice", **env: str) -> subprocess.Popen[str]:
        """Start the command and return at once; what the test does not end is ended after it."""
        argv = self.argv(host, *command, user=user, **env)
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)
        self.undo.callback(_end, process)
        return process

    def python(self, host: str, *args: str, **options: Any) -> Result:
        """Run the tests' own interpreter there, with these sources. Takes what `run` takes."""
        return self.run(host, sys.executable, *args, PYTHONPATH=str(REPO), **options)

    def orch(self, *args: str, host: str = "ctl", **options: Any) -> Result:
        """Run the command line there, as alice unless said otherwise; runs go to where a user's go, below her home."""
        done = self.python(host, "-m", "orchestrator.cli", *args, NO_COLOR="1", **options)
        assert "Traceback" not in done.err or "traceback:" in done.err, done.err
        return replace(done, argv=args)

    def file(self, host: str, path: str) -> Path:
        """A file of the host as this process can read it, also while the host is off.

        Of the folders that a host has of its own, and of /shared; symbolic links are not followed rightly.
        """
        if Path(path).parts[1] == "shared":
            return self.cluster.root / path[1:]
        assert Path(path).parts[1] in hosts.OWN, f"{path} is the machine's"
        return self.cluster.folder(host) / path[1:]

    def processes(self, host: str, user: str | None = None, mark: str = "") -> list[Process]:
        """The living processes of a host: all, one user's, or those of a run by the mark in their environment.

        Numbers are the machine's, so that `os.kill` and `wait_gone` work on them. None where the host is off.
        """
        uid = next((person.uid for person in PEOPLE if person.name == user), 0 if user == "root" else None)
        return [
            process
            for pid in network.in_network(network.network(host))
            if (process := identify(pid)) is not None and _belongs(pid, uid, mark)
        ]

    def cut(self, host: str) -> None:
        """Unplug the host's cable."""
        network.cut(host)
        self.undo.callback(network.heal, host)

    def heal(self, host: str) -> None:
        network.heal(host)

    def crash(self, host: str) -> None:
        """Power off, without a last packet."""
        hosts.crash(self.cluster, self.cluster.known(host))
        self.undo.callback(self._boot_if_off, host)

    def boot(self, host: str) -> None:
        whole.boot(self.cluster, host)

    def gate(self, host: str, door: str) -> None:
        """Let the host's port 22 answer `door` alone."""
        network.gate(host, door)
        self.undo.callback(network.ungate, host)

    def ungate(self, host: str) -> None:
        network.ungate(host)

    def ignore(self, host: str, other: str, longer_than: int = 0, after: int = 0) -> None:
        """Lose what `other` sends to the host, in this direction; or only its packets of more than so many bytes, or
        what comes `after` so many bytes of a connection that is new.
        """
        network.ignore(host, other, longer_than, after)
        self.undo.callback(network.ungate, host)

    def change_key(self, host: str) -> None:
        """Give the host an SSH host key that nobody knows."""
        sshd.change_key(self.cluster, host)
        sshd.restart(self.cluster, host)
        self._undo_sshd(host, lambda: sshd.give_key(self.cluster, host))

    def sshd(self, host: str, *options: str) -> None:
        """Start the host's sshd anew with these lines of sshd_config, such as "MaxSessions 2"."""
        sshd.configure(self.cluster, host, options)
        sshd.restart(self.cluster, host)
        self._undo_sshd(host, lambda: sshd.configure(self.cluster, host))

    def at_site(self, name: str, *workers: str) -> None:
        """Make these hosts, and the laptop, those of a site of tests/testbed/sites.py; open what a person opens."""
        for host in (sites.LAPTOP, *workers):
            self.undo.callback(sites.remove, self.cluster, host)
            sites.apply(self.cluster, host, name)
        if sites.SITES[name].asks:
            for host in workers:
                self.open_by_hand(sites.LAPTOP, "ssh", host)

    def ask_for_more(self, host: str, *options: str) -> None:
        """Start the host's sshd anew, so that it asks for a second factor or a password. See `open_by_hand`."""
        sshd.ask_for_more(self.cluster, host)
        self.sshd(host, *options)

    def open_by_hand(self, here: str, *words: str) -> None:
        """Run this ssh command as alice, who types what she is asked for. A connection that stays is closed later."""
        program = self.file(here, "/srv/answers")
        program.write_text(sshd.answering())
        program.chmod(0o755)
        self.undo.callback(self.run, here, words[0], "-O", "exit", *words[1:])
        self.output(here, *words, "true", SSH_ASKPASS="/srv/answers", SSH_ASKPASS_REQUIRE="force")

    def failed_logins(self, host: str) -> list[str]:
        """The connections to the host that ended before their user was known, from the log of its sshd."""
        log = self.file(host, sshd.LOG).read_text(errors="replace").splitlines()
        return [line for line in log if "by authenticating user" in line or "Too many authentication failures" in line]

    def end_lost_connections(self, host: str) -> None:
        """From now on the host's sshd ends connections that have been silent for 4 s.

        Without it, sshd learns that a client behind a cut cable has gone when TCP next repeats a packet: after as
        long again as the cable was cut.
        """
        self.sshd(host, "ClientAliveInterval 2", "ClientAliveCountMax 2")

    def tidy(self) -> list[str]:
        """Undo everything; return what alice and bob had left running, a sentence each, after it was killed.

        A step that fails keeps none of the others from being done: the next test is to find the testbed whole.
        """
        left: list[str] = []
        with ExitStack() as steps:  # the last one first
            for host in self.cluster.hosts:
                steps.callback(people.refurnish, self.cluster, host)
            steps.callback(lambda: left.extend(self._end_processes()))
            if self.cluster.slurm:
                steps.callback(self._end_jobs)
            if self.cluster.sge:
                steps.callback(self._end_sge_jobs)
            steps.callback(self.undo.close)
        return left

    def _undo_sshd(self, host: str, change: Callable[[], None]) -> None:
        def back() -> None:
            change()
            sshd.restart(self.cluster, host)

        self.undo.callback(back)

    def _boot_if_off(self, host: str) -> None:
        if not hosts.is_up(self.cluster, host):
            whole.boot(self.cluster, host)

    def _end_jobs(self) -> None:
        """Cancel alice's and bob's jobs; returns when Slurm has ended them."""
        for person in PEOPLE:
            self.output("ctl", "scancel", f"--user={person.name}", user="root")
        wait_until(lambda: not self.output("ctl", "squeue", "--noheader", user="root"), "the end of Slurm's jobs")

    def _end_sge_jobs(self) -> None:
        """Delete alice's and bob's jobs; returns when Grid Engine has ended them."""
        for person in PEOPLE:
            self.run("ctl", "qdel", "-f", "-u", person.name, user="root")  # an error where there are none
        wait_until(lambda: not self.output("ctl", "qstat", "-u", "*", user="root"), "the end of Grid Engine's jobs")

    def _end_processes(self) -> list[str]:
        everything = [
            (host, person.name, process)
            for host in self.cluster.hosts
            for person in PEOPLE
            for process in self.processes(host, person.name)
        ]
        # sshd ends a closed connection's process in its own time
        stayed = set(wait_gone([process for _, _, process in everything], PATIENCE))
        said = [f"{user} left {_words(each)} on {host}" for host, user, each in everything if each in stayed]
        for each in stayed:
            send_signal(each, signal.SIGKILL)
        wait_gone(list(stayed), PATIENCE)
        return said


def _end(process: subprocess.Popen[str]) -> None:
    """End the command, and what it started and still knows."""
    end_descendants(process.pid)
    with process:
        process.kill()


def _belongs(pid: int, uid: int | None, mark: str) -> bool:
    try:
        # Not the owner of /proc/PID: sshd's processes for a user hide behind root.
        owner = re.search(r"^Uid:\t(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        if owner is None or uid not in {None, int(owner[1])}:
            return False
        return not mark or f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended meanwhile
        return False


def _words(process: Process) -> str:
    try:
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return process.command
    return " ".join(each.decode(errors="replace") for each in arguments if each)[:200] or process.command
