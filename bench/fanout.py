"""From the command to "the agent runs on all hosts": orch submit to 8, 16 and 64 sshd hosts, against pdsh and fabric.

The peers send the same bytes and start the same python3 with the agent's imports, detached. Each host says itself when
it got there, by the machine's clock, which all of them share. Nothing of the launch before is left on the hosts.

The hosts share the cores of the machine. Where they have their own, what counts is the processor time of this side: of
the submit and the supervisor until the last host is there, and of all that the peers start here.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from lab import needed, on_the_testbed, scratch
from pairs import Load, Pairs, Target, how_many, print_pairs, print_row, program, say

from orchestrator.transport.node_archive import node_archive

SIZES, AT_ONCE, SECONDS = (8, 16, 64), 32, 60.0
FOLDER, STAMPS = ".bench", Path("/shared/bench")
CODE = (
    "import sys, time, socket; sys.path.insert(0, 'bundle'); import orchestrator.node.agent.agent; "
    f"open('{STAMPS}/' + socket.gethostname(), 'w').write(repr(time.time()))"
)
# What a careful user would write: everything detached, so that the connection may go.
START = f"""setsid python3 -I -S -c "{CODE}" >log 2>&1 </dev/null &"""
GROUP = """
import sys
from fabric import ThreadingGroup
bundle, prepare, start, *hosts = sys.argv[1:]
group = ThreadingGroup(*hosts)
if prepare:
    group.run(prepare, hide=True, in_stream=False)
    group.put(bundle, remote=".bench/bundle")
group.run(start, hide=True, in_stream=False)
"""


class Launch(NamedTuple):
    """How long one took, None where it did not get there, and what processor time this side spent; in seconds."""

    seconds: float | None
    processor: float


def spent() -> float:
    """Return the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spent_by(pid: int) -> float:
    """Return the processor time of a process that lives, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def clean(names: list[str]) -> None:
    """Nothing of a launch is left, here and on the hosts."""
    remove = f"rm -rf {FOLDER} .orch"
    subprocess.run(["pdsh", "-R", "ssh", "-f", str(AT_ONCE), "-w", ",".join(names), remove], check=True)
    for path in STAMPS.iterdir():
        path.unlink()


def last_stamp(begun: float, hosts: int) -> float | None:
    """Seconds until the last host of a peer said that it is there."""
    end = time.monotonic() + SECONDS
    while len(found := [path for path in STAMPS.iterdir() if path.stat().st_size]) < hosts:
        if time.monotonic() > end:
            return None
        time.sleep(0.05)
    return max(float(path.read_text()) for path in found) - begun


def orch(folder: Path, names: list[str]) -> Launch:
    """The product: until the last agent's own first event."""
    (folder / "job.yaml").write_text(json.dumps({"name": "fanout", "command": ["sleep", "600"]}))
    (folder / "hosts.yaml").write_text(json.dumps({"kind": "ssh", "hosts": names, "nproc_per_node": 1}))
    argv = [program("orch"), "submit", str(folder / "job.yaml"), "-p", str(folder / "hosts.yaml"), "--json"]
    begun, before = time.time(), spent()
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode())
    answer = json.loads(done.stdout)
    end, nodes = time.monotonic() + SECONDS, Path(answer["folder"]) / "nodes"
    while len(found := first_events(nodes)) < len(names) and time.monotonic() < end:
        time.sleep(0.1)
    supervisor = json.loads((nodes.parents[2] / "supervisor.json").read_text())["pid"]
    processor = spent() - before + spent_by(supervisor)
    subprocess.run([program("orch"), "cancel", answer["run_id"], "--now"], capture_output=True, check=True)
    return Launch(max(found) - begun if len(found) == len(names) else None, processor)


def first_events(nodes: Path) -> list[float]:
    """When each agent wrote its first event, of those that are known here."""
    files = [path / "events.jsonl" for path in nodes.glob("*")]
    lines = [path.read_text().partition("\n")[0] for path in files if path.exists()]
    return [json.loads(line)["time"] for line in lines if line]


def pdsh(bundle: Path, names: list[str]) -> Launch:
    """One ssh a host, which takes the bytes on its standard input and starts python3."""
    command = f"mkdir -p {FOLDER} && cd {FOLDER} && cat >bundle && {{ {START} }}"
    wrapped = f"ssh -o BatchMode=yes %h '{command.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}' <{bundle}"
    begun, before = time.time(), spent()
    subprocess.run(["pdsh", "-R", "exec", "-f", str(AT_ONCE), "-w", ",".join(names), "sh", "-c", wrapped], check=True)
    return Launch(last_stamp(begun, len(names)), spent() - before)


def group(bundle: Path, names: list[str]) -> Launch:
    """fabric's ThreadingGroup: put, then run."""
    begun, before = time.time(), spent()
    argv = [sys.executable, "-c", GROUP, str(bundle), f"mkdir -p {FOLDER}", f"cd {FOLDER} && {{ {START} }}", *names]
    subprocess.run(argv, check=True)
    return Launch(last_stamp(begun, len(names)), spent() - before)


def bare(names: list[str]) -> str:
    """How long both peers take for `true` on all hosts."""
    begun = time.monotonic()
    subprocess.run(["pdsh", "-R", "ssh", "-f", str(AT_ONCE), "-w", ",".join(names), "true"], check=True)
    middle = time.monotonic()
    subprocess.run([sys.executable, "-c", GROUP, "", "", "true", *names], check=True)
    return f"a bare `true`: pdsh {middle - begun:.2f} s, ThreadingGroup {time.monotonic() - middle:.2f} s"


def measure(names: list[str], bundle: Path, count: int) -> None:
    """Print the rows of so many hosts."""
    note = bare(names)
    say(note)

    def measured(what: str) -> Launch:
        clean(names)
        return orch(scratch(), names) if what == "orch" else (pdsh if what == "pdsh" else group)(bundle, names)

    for peer, limit, against in (
        ("pdsh", 0.6, "`pdsh`, an `ssh` a host"),
        ("group", 1.0, "fabric's `ThreadingGroup`: put, then run"),
    ):
        load, times, processor = Load(), Pairs(), Pairs()
        for number in range(1, count + 1):
            for side, launch in ("ours", measured("orch")), ("theirs", measured(peer)):
                getattr(times, side).append(launch.seconds)
                getattr(processor, side).append(launch.processor)
            say(f"pair {number} of {count}: {times.ours[-1]} against {times.theirs[-1]}")
        what = f"submit to the agent running on all of {len(names)} hosts"
        print_pairs(what, against, Target(limit), times, times.medians("s"), load, note)
        ratios = processor.ratios
        shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        cells = shown, str(count), processor.medians("s"), "no target", str(load)
        print_row("the same: processor time of this side", against, "-", *cells)


def main() -> None:
    if not on_the_testbed(max(SIZES)):
        return
    needed("pdsh")
    count = how_many(5)
    STAMPS.mkdir(exist_ok=True)
    STAMPS.chmod(0o777)
    bundle = scratch() / "bundle"
    bundle.write_bytes(node_archive())
    os.environ["PDSH_SSH_ARGS_APPEND"] = "-o BatchMode=yes"
    for size in SIZES:
        measure([f"n{number}" for number in range(1, size + 1)], bundle, count)


if __name__ == "__main__":
    main()
