"""Three machines of alice's and her laptop: what the tests of the SSH backend do with them."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.node.system.processes import identify, send_signal, wait_gone
from tests.cluster.control import Control
from tests.patience import PATIENCE
from tests.result import Result
from tests.testbed.layout import REPO
from tests.testbed.machine import wait_until

LAPTOP = "ctl"
# A host's .bashrc that writes a line for each connection over which somebody runs something.
DIALLED = '[ "$(cat /proc/$PPID/comm)" != sshd ] || echo one >>~/dialled\n'
HOLD = "import time\nprint('holding', flush=True)\ntime.sleep(600)\n"

# Ranks that do everything together, a few steps a second, without torch, whose import takes longer than most tests. In
# each step every rank gives its part to rank 0 and gets all parts, so a rank that is lost takes the others with it.
# Rank 0 saves checkpoints as orch's library does, every fifth step and when a rank was told to stop. All ranks resume
# from what they are given. The weights are a chain of hashes, and `weights_after` says what they are in the end.
STEPS = """
import hashlib, json, os, shutil, signal, socket, sys, time, zlib

total, pause, every = int(sys.argv[1]), float(sys.argv[2]), 5
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = os.environ["ORCH_CHECKPOINT_DIR"]
this_start = os.environ["ORCH_RUN_ID"] + os.environ["ORCH_ATTEMPT"] + os.environ["MASTER_PORT"]
place = (os.environ["MASTER_ADDR"], 61000 + zlib.crc32(this_start.encode()) % 4000)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
signal.signal(signal.SIGUSR2, lambda *_: told.append(1))


def committed():
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name for name in names if os.path.exists(f"{folder}/{name}/COMMIT") and name.startswith("step_"))


def save(step, weights):
    draft, name = f"{folder}/.tmp-{os.getpid()}", f"{folder}/step_{step:08d}"
    os.makedirs(draft)
    entry = {"bytes": len(weights), "sha256": hashlib.sha256(weights.encode()).hexdigest()}
    manifest = json.dumps({"format": 1, "step": step, "world_size": world, "files": {"state.pt": entry}})
    commit = hashlib.sha256(manifest.encode()).hexdigest()
    for file, text in (("state.pt", weights), ("manifest.json", manifest), ("COMMIT", commit)):
        with open(f"{draft}/{file}", "w") as out:
            out.write(text)
    shutil.rmtree(name, ignore_errors=True)
    os.rename(draft, name)
    for old in committed()[:-3]:
        shutil.rmtree(f"{folder}/{old}", ignore_errors=True)


def connect():
    while True:  # rank 0 may not listen yet, and nothing but trying tells that it does
        try:
            return socket.create_connection(place, 60)
        except ConnectionRefusedError:
            time.sleep(0.02)


first, weights = 0, "begin"
if rank == 0:
    found = os.environ.get("ORCH_RESUME_FROM", "")
    if found:
        with open(f"{found}/manifest.json") as manifest, open(f"{found}/state.pt") as saved:
            first, weights = json.load(manifest)["step"], saved.read()
    with socket.create_server(place, backlog=world) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
else:
    peers = [connect()]
for peer in peers:
    peer.settimeout(None)
files = [peer.makefile("r") for peer in peers]


def tell(peer, value):
    peer.sendall(json.dumps(value).encode() + b"\\n")


def told_by(file):
    line = file.readline()
    if not line:
        raise ConnectionResetError("Connection reset by peer")
    return json.loads(line)


def together(value):
    '''Give rank 0 a value, and get the list of all ranks' values.'''
    if rank:
        tell(peers[0], value)
        return told_by(files[0])
    values = [value] + [told_by(file) for file in files]
    for peer in peers:
        tell(peer, values)
    return values


def must_wait(done):
    return False


first, weights = together([first, weights])[0]
print(f"rank {rank} begins at {first}", flush=True)
done = first
while done < total:
    time.sleep(pause)
    stops, waits = zip(*together([bool(told), must_wait(done)]))
    if waits[0] and not any(stops):
        continue
    weights = hashlib.sha256(f"{weights} {done}".encode()).hexdigest()
    done += 1
    if rank == 0 and (done % every == 0 or done == total or any(stops)):
        save(done, weights)
    if any(stops) and done < total:
        sys.exit(95)
if rank == 0:
    print("weights", weights, flush=True)
together(None)
"""


def weights_after(total: int) -> str:
    """The weights with which STEPS ends if nothing happens to it."""
    weights = "begin"
    for step in range(total):
        weights = hashlib.sha256(f"{weights} {step}".encode()).hexdigest()
    return weights


# The same with torch: DDP, resumed and stopped by the library.
TORCH_STEPS = """
import hashlib, json, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from orchestrator.training import run

total, pause = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
first = run.resume(model=model, optimizer=optimizer)
print(f"rank {dist.get_rank()} begins at {first}", flush=True)
for step in range(first, total):
    torch.manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(8, 16)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(pause)
    run.after_step(step + 1, total, loss, save_every=5, model=model, optimizer=optimizer)
if dist.get_rank() == 0:
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
# The same, and in the first attempt all ranks stay together at step 12 until a file ~/go is on rank 0's machine: a test
# breaks something meanwhile, and loses no time before it and after it.
HELD_AT_FIRST = STEPS.replace(
    "return False",
    "return done == 12 and os.environ['ORCH_ATTEMPT'] == '0' and not os.path.exists(os.path.expanduser('~/go'))",
)
_PAUSE, _SLOW = "time.sleep(pause)", "time.sleep(0.3 if os.environ['ORCH_ATTEMPT'] == '0' else pause)"
TORCH_SLOW_AT_FIRST = TORCH_STEPS.replace(_PAUSE, _SLOW)


@dataclass(frozen=True)
class Lab:
    """Alice at her laptop, with a profile and jobs in her home."""

    control: Control
    user: str = "alice"

    @property
    def home(self) -> Path:
        """Her home on the laptop, as this process sees it."""
        return self.control.file(LAPTOP, f"/home/{self.user}")

    @property
    def runs(self) -> Path:
        """The folder of her runs on the laptop."""
        return self.home / ".local/state/orch/runs"

    def write(self, name: str, text: str) -> None:
        """A file in her home on the laptop; others may read it, for it is written by root."""
        (self.home / name).write_text(text)

    def profile(self, name: str = "lab", hosts: list[Any] | None = None, **fields: Any) -> str:
        """Write a profile; JSON is YAML."""
        values = {"kind": "ssh", "hosts": hosts or ["n1", "n2", "n3"], "nproc_per_node": 1, "python": sys.executable}
        self.write(f"{name}.yaml", json.dumps({**values, **fields}))
        return f"{name}.yaml"

    def job(self, name: str, program: str, **fields: Any) -> str:
        """Write a job and the program that it runs; the launcher imports torch only if the program does."""
        launcher = {} if "torch" in program or "training" in program else {"launcher": "exec"}
        (self.home / name).mkdir(exist_ok=True)
        self.write(f"{name}/main.py", program)
        self.write(f"{name}/{name}.yaml", json.dumps({"script": "main.py", **launcher, **fields}))
        return f"{name}/{name}.yaml"

    def orch(self, *args: str, **options: Any) -> Result:
        """The command line on her laptop."""
        return self.control.orch(*args, host=LAPTOP, user=self.user, **options)

    def argv(self, *args: str) -> list[str]:
        """The command line's own argv, for a command that is not waited for."""
        return ["env", f"PYTHONPATH={REPO}", sys.executable, "-m", "orchestrator.cli", *args]

    def submit(self, *args: str, **options: Any) -> str:
        """Submit, detached; the run's id."""
        done = self.orch("submit", *args, "--json", **options)
        assert done.code == 0, done.err
        return str(done.json["run_id"])

    def status(self, run: str = "last") -> dict[str, Any]:
        """What `orch status` says of the run."""
        found: dict[str, Any] = self.orch("status", run, "--json").json
        return found

    def wait(self, run: str = "last", seconds: float = PATIENCE) -> Result:
        """Wait for the run's end, as she would."""
        return self.orch("wait", run, "--timeout", str(seconds), timeout=seconds + PATIENCE)

    def events(self, run: str, kind: str) -> list[dict[str, Any]]:
        """The run's events of one kind, as they are known on the laptop."""
        folder = self.runs / run
        files = [folder / "events.jsonl", *sorted(folder.glob("nodes/*/events.jsonl"))]
        lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if event["kind"] == kind]

    def let_go(self, host: str) -> None:
        """Let HELD_AT_FIRST go on, whose rank 0 is on the host."""
        self.control.file(host, f"/home/{self.user}/go").touch()

    def until(self, run: str, kind: str, count: int = 1) -> None:
        """Return when the laptop knows of so many events of a kind."""
        wait_until(lambda: len(self.events(run, kind)) >= count, f"{count} {kind} of {run}")

    def log(self, run: str, rank: int = 0) -> str:
        """A rank's log as it has been copied to the laptop, all attempts."""
        folder = self.runs / run
        found = folder.glob(f"nodes/*/attempt_*/rank_{rank}.log")
        in_order = sorted(found, key=lambda path: int(path.parent.name.removeprefix("attempt_")))
        return "".join(path.read_text() for path in in_order)

    def until_said(self, run: str, text: str, rank: int = 0) -> None:
        """Return when a rank's log on the laptop holds the text."""
        wait_until(lambda: text in self.log(run, rank), f"'{text}' in the log of rank {rank} of {run}")

    def supervisor(self) -> list[int]:
        """The supervisor's pid on the laptop, if one is there."""
        return [
            each.pid
            for each in self.control.processes(LAPTOP, self.user)
            if b"orchestrator.supervisor" in _argv(each.pid)
        ]

    def of_run(self, run: str, host: str) -> list[int]:
        """Launcher and ranks of the run on a host."""
        return [each.pid for each in self.control.processes(host, self.user) if _has_mark(each.pid, run)]

    def agents(self, host: str) -> list[int]:
        """The agents on a host."""
        return [each.pid for each in self.control.processes(host, self.user) if b"\0agent\0" in _argv(each.pid)]

    def docker_clients(self, host: str) -> list[int]:
        """Each `docker run` on a host."""
        return [each.pid for each in self.control.processes(host, self.user) if b"docker\0run\0" in _argv(each.pid)]

    def ranks(self, run: str, host: str) -> list[int]:
        """The ranks of the run on a host: what its launcher has started."""
        pids = self.of_run(run, host)
        return [pid for pid in pids if _parent(pid) in pids]

    def assert_nothing_left(self, run: str, hosts: tuple[str, ...] = ("n1", "n2", "n3"), *, away: str = "") -> None:
        """No process of the run on its hosts, and none of its files; one may be `away` at its end."""
        assert [event["host"] for event in self.events(run, "left_behind")] == ([away] if away else [])
        for host in hosts:
            assert self.of_run(run, host) == []
            folder = self.control.file(host, f"/home/{self.user}/.orch/runs/{run}")
            assert not folder.exists(), sorted(folder.rglob("*"))


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    """Signal these processes, all at one moment, and wait until they are gone."""
    assert pids
    found = [process for pid in pids if (process := identify(pid)) is not None]
    for process in found:
        send_signal(process, number)  # one may have ended since
    assert wait_gone(found, PATIENCE) == []


def _argv(pid: int) -> bytes:
    return _read(pid, "cmdline")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def _has_mark(pid: int, run: str) -> bool:
    return f"ORCH_MARK={run}/".encode() in _read(pid, "environ")


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def settled(check: Callable[[], Any], what: str) -> None:
    """Return when the check holds."""
    wait_until(check, what)
