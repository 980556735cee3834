"""Checkpoints over the system's ssh: through a gateway, gone on with where a copy broke off, without an ssh here."""

from __future__ import annotations

import json

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP

# Alice's own process on her laptop: brings a checkpoint of 24 MB from n3, breaks off, goes on, and gives it to n2.
BRING = """
import json, sys
from contextlib import closing
from pathlib import Path
from orchestrator.transport.address import Address
from orchestrator.backends.mirror.checkpoints import bring_checkpoint
from orchestrator.backends.mirror.fetch import read_small
from orchestrator.backends.mirror.send import give_checkpoint
from orchestrator.errors import BackendError
from orchestrator.transport.openssh import SshProcess
from orchestrator.transport.pool import ConnectionPool
from orchestrator.transport.rpc import Session

seen = []
take = SshProcess.__init__
SshProcess.__init__ = lambda self, *args, **named: (take(self, *args, **named), seen.append(self))[0]
name, jump = "step_00000003", sys.argv[1] or None
here = Path.home() / name
with closing(ConnectionPool()) as pool:
    session = pool.session(Address("n3", jump=jump), "~/.orch")
    with session.bulk(1) as little:
        assert little is session
    broken = 0
    if jump:  # what a copy that broke off has left
        here.mkdir()
        entry = json.loads(read_small(session, f"~/{name}", ["manifest.json"], 1 << 20)[0])["files"]["state.pt"]
        partial = here / f".state.pt.{entry['sha256'][:16]}.partial"
        with open(partial, "wb") as file:
            def some(values, stream, count):
                file.write(stream.read(5_000_000))
                seen[-1].process.kill()
                raise EOFError("the cable was cut")
            try:
                with session.bulk(24 << 20) as fast:
                    asked = json.dumps([[0, "state.pt", 0, 24_000_000, None, ""]]).encode()
                    fast.ask("read_files", asked, below=[f"~/{name}"], hashed=False, sink=some, most=1 << 30).wait()
            except BackendError as error:
                broken = int(error.transient)
    whole = len(bring_checkpoint(session, f"~/{name}", here)) == 3
    give_checkpoint(pool.session(Address("n2"), "~/.orch"), here, f"~/given/{name}")
    fast, ended = len(seen), all(each.process.poll() is not None for each in seen)
print(json.dumps({"whole": whole, "fast": fast, "ended": ended, "broken": broken}))
"""
MAKE = """
import hashlib, json, os
os.makedirs("step_00000003")
os.chdir("step_00000003")
content = os.urandom(1000) * 24000
open("state.pt", "wb").write(content)
files = {"state.pt": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
manifest = json.dumps({"format": 1, "step": 3, "files": files}).encode()
open("manifest.json", "wb").write(manifest)
open("COMMIT", "w").write(hashlib.sha256(manifest).hexdigest())
"""
SUMS = "cd {} && sha256sum COMMIT manifest.json state.pt"


@pytest.mark.parametrize("way", ["through n1", "without ssh"])
def test_a_large_checkpoint_comes_whole_and_goes_on_to_another_host(testbed: Control, way: str) -> None:
    testbed.output("n3", "python3", "-c", MAKE)
    if way == "without ssh":
        testbed.output(LAPTOP, "mkdir", "-p", "bin")
        done = testbed.python(LAPTOP, "-c", BRING, "", PATH="/home/alice/bin")
    else:
        testbed.gate("n3", "n1")
        done = testbed.python(LAPTOP, "-c", BRING, "n1")
    assert done.code == 0, done.err
    through = way == "through n1"
    assert json.loads(done.out) == {"whole": True, "fast": 3 * through, "ended": True, "broken": int(through)}
    sums = [
        testbed.output(host, "sh", "-c", SUMS.format(folder))
        for host, folder in (("n3", "step_00000003"), (LAPTOP, "step_00000003"), ("n2", "given/step_00000003"))
    ]
    assert sums[0] == sums[1] == sums[2]
    left = [path.name for path in testbed.file(LAPTOP, "/home/alice/step_00000003").iterdir()]
    assert sorted(left) == ["COMMIT", "manifest.json", "state.pt"]
