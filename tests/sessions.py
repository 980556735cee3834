"""`make sessions`: type the commands of the recorded sessions again, and write what was printed into the pages.

`python -m tests.sessions README.md` records one page.

A page says in HTML comments what happens before or in the block that follows:

    <!-- file train.py -->          write the block to that file of alice's project, on each machine
    <!-- recorded on ctl -->        type each line of the block that begins with `$ ` on ctl, as alice, in her project
    <!-- when it trains on ctl -->  wait until her newest run has taken a step
    <!-- crash n2 -->               that machine loses power
    <!-- second factor on ctl -->   from now on, ctl asks for a one-time code
    <!-- opened on n3 ssh ctl -->   alice types this command on n3, and the code

Everything happens on a testbed of its own (docs/testbed.md), so the pages hold no name or path of this machine.
"""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from fcntl import ioctl

from orchestrator.node.system.processes import identify
from tests.cluster.control import Control
from tests.patience import PATIENCE
from tests.testbed import sshd
from tests.testbed.cluster import down, up
from tests.testbed.layout import REPO, Cluster, ClusterError, state_folder
from tests.testbed.machine import ENVIRONMENT, wait_until

PAGES = ("docs/sessions.md", "README.md", "docs/from-laptop.md")
STEP = re.compile(r"<!-- (?P<what>[^>]+?) -->(?P<block>\n+```(?P<language>\w*)\n(?P<text>.*?)^```$)?", re.M | re.S)
COLUMNS = 92  # what a browser window of 1,400 pixels shows of a line of code on the site
FIRST, LAST = 5, 5  # lines of a log that are kept, before and after those that are left out
QUIET = {
    "NO_COLOR": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}  # the hosts of a testbed have no reverse DNS, of which torch warns
VENV = "/home/alice/venv"
ORCH = f'#!/bin/sh\nPYTHONPATH={REPO} exec {VENV}/bin/python -m orchestrator.cli "$@"\n'


class Recorder:
    """A testbed with alice, who has orch, torch and a project on each machine."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.job = ""  # the number of her newest Slurm job
        for host in control.cluster.hosts:
            control.output(host, "mkdir", "-p", "bin", "venv", "project/cluster_profiles")
            control.output(host, "mount", "--bind", sys.prefix, VENV, user="root")
            self._write(host, "bin/orch", ORCH)
            control.output(host, "chmod", "+x", "bin/orch")

    def page(self, text: str) -> str:
        """Return the page with what its commands print now."""
        return STEP.sub(self._step, text)

    def files_of(self, text: str) -> None:
        """Write the files of a page that is not recorded; later pages may use them."""
        for step in STEP.finditer(text):
            if step["what"].startswith("file "):
                self._step(step)

    def _step(self, step: re.Match[str]) -> str:
        what, block, text = step["what"], step["block"] or "", step["text"] or ""
        match what.split():
            case ["file", name]:
                for host in self.control.cluster.hosts:
                    self._write(host, f"project/{name}", text)
            case ["recorded", "on", host]:
                lines = "".join(self._typed(host, line[2:]) for line in text.splitlines() if line.startswith("$ "))
                return step[0].replace(block, block.replace(text, lines))
            case ["when", "it", "trains", "on", host]:
                wait_until(lambda: self._has_stepped(host), "the newest run has taken no step")
            case ["crash", host]:
                self.control.crash(host)
            case ["second", "factor", "on", host]:
                self.control.ask_for_more(host, *sshd.SECOND_FACTOR)
            case ["opened", "on", host, *command]:
                self.control.open_by_hand(host, *command)
            case _:
                raise ClusterError(f"a page says <!-- {what} -->, which is no step of a session")
        return step[0]

    def _write(self, host: str, path: str, text: str) -> None:
        self.control.output(host, "sh", "-c", f"cat > {path}", stdin=text)

    def _has_stepped(self, host: str) -> bool:
        state = json.loads(self.control.output(host, "bin/orch", "status", "last", "--json"))
        if state["verdict"]:
            raise ClusterError(f"{state['run_id']} has ended too early: {state['verdict']['reason']}")
        return bool((state["progress"] or {}).get("step"))

    def _typed(self, host: str, command: str) -> str:
        """Type a command, and return it with its output as a block has it."""
        command = re.sub(r"(?<=requeue )\d+", self.job, command)
        print(f"{host}$ {command}", flush=True)
        output = self._output(host, command)
        if job := re.search(r"Slurm job (\d+)", output):
            self.job = job[1]
        return f"$ {command}\n" + "".join(f"{line}\n" for line in shortened(output.splitlines(), command))

    def _output(self, host: str, command: str) -> str:
        """Return what the command prints on a terminal without colour."""
        path = f"/home/alice/bin:{VENV}/bin:/usr/bin:/bin"
        argv = self.control.argv(
            host, "bash", "-c", f"cd project && {command}", **QUIET, TERM="xterm", LANG="C.UTF-8", PATH=path
        )
        terminal, its = pty.openpty()
        ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        with subprocess.Popen(argv, stdin=its, stdout=its, stderr=its, env=ENVIRONMENT, close_fds=True) as process:
            os.close(its)
            output = b"".join(_read(terminal))
            process.wait(PATIENCE)
        os.close(terminal)
        return plain(output.decode())


def _read(terminal: int) -> Iterator[bytes]:
    """Yield what is printed on a terminal until nobody has it open."""
    try:
        while piece := os.read(terminal, 1 << 16):
            yield piece
    except OSError:  # EIO: the last process has closed its end
        return


def plain(output: str) -> str:
    """Return the text as it stands on the terminal at the end: lines that were written over, as they were last."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.replace("\r\n", "\n"))
    return "\n".join(line.rpartition("\r")[2].rstrip() for line in text.split("\n"))


def shortened(lines: list[str], command: str) -> list[str]:
    """Return the lines; of a followed run its first and last lines before the verdict, if it failed its first alone."""
    if not (command.startswith("orch run") or "--follow" in command):
        return lines
    ends = [number for number, line in enumerate(lines) if re.match(r"\S+-\w{6} (succeeded|failed|cancelled)", line)]
    end = ends[0] if ends else len(lines)
    last = LAST if "succeeded" in lines[end] else 0
    return [*lines[:FIRST], "...", *lines[end - last :]] if end > FIRST + last else lines


def main() -> int:
    me = identify(os.getpid())
    assert me is not None
    try:
        cluster = up(Cluster(state_folder(), 3, slurm=True, owner=(me.pid, me.started)))
    except ClusterError as error:
        print(f"sessions: {error}", file=sys.stderr)
        return 1
    try:
        recorder = Recorder(Control(cluster))
        for name in PAGES:
            page = REPO / name
            if name in (sys.argv[1:] or PAGES):
                page.write_text(recorder.page(page.read_text()))
            else:
                recorder.files_of(page.read_text())
    finally:
        down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
