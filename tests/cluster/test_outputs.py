"""What a script writes on other machines comes home, byte for byte, before their folders are removed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from orchestrator.errors import EXIT_FILES_LEFT
from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, Lab, kill
from tests.patience import PATIENCE
from tests.testbed.layout import PEOPLE
from tests.testbed.machine import wait_until

# An ordinary script: it knows nothing of orch, but for one file in $ORCH_OUTPUT_DIR.
SCRIPT = """
import os, sys
def write(path, data):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
write("model.pt", bytes(range(256)) * 9000)
write("outputs/checkpoint-500/weights.bin", b"w" * 1000)
write("lightning_logs/version_0/hparams.yaml", b"lr: 1")
write(os.environ["ORCH_OUTPUT_DIR"] + "/x", b"")
write("gone.tmp", b"1")
os.unlink("gone.tmp")
write(b"odd-\\xff\\n name".decode("utf-8", "surrogateescape"), b"odd")
write("__pycache__/x.pyc", b"no")
write("data/mnist", b"no")
write("env/pyvenv.cfg", b"no")
write("run.sh", b"#!/bin/sh")
os.chmod("run.sh", 0o755)
os.symlink("/etc/passwd", "out")
os.symlink("model.pt", "last.pt")
write("../results/out.txt", b"beside")
write("../../above.txt", b"above")
write(os.environ["ORCH_RUN_DIR"] + "/nodes/mine.txt", b"absolute")
os.symlink("../results", "linked")
with open("main.py", "a") as file:
    file.write("# changed by itself")
"""
NAMES = {
    "model.pt", "outputs/checkpoint-500/weights.bin", "lightning_logs/version_0/hparams.yaml", "x", "run.sh", "main.py",
    "beside/results/out.txt", "above/above.txt", "beside/nodes/mine.txt",
    b"odd-\xff\n name".decode("utf-8", "surrogateescape"),
}  # fmt: skip


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def folder(lab: Lab, run: str) -> Path:
    """The run's folder of outputs on the laptop."""
    return lab.home / ".local/state/orch/runs" / run / "outputs"


def outputs(lab: Lab, run: str) -> dict[str, bytes]:
    """The files in it."""
    top = folder(lab, run)
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def left(lab: Lab, run: str) -> list[tuple[str, int | None]]:
    """Which hosts have how many outputs that are not here, as `orch status` tells it."""
    return [(each["host"], each["files"]) for each in lab.status(run)["left"]]


def assert_fetched(lab: Lab, run: str) -> None:
    """`orch pull --outputs` brings what is left, and then nothing is left there."""
    done = lab.orch("pull", run, "--outputs", "--to", f"pulled-{run}")
    assert done.code == 0, done.err
    assert left(lab, run) == []
    for host in ("n1", "n2"):
        assert not lab.control.file(host, f"/home/alice/.orch/runs/{run}").exists()
    pulled = lab.home / f"pulled-{run}" / "outputs"
    assert {str(path.relative_to(pulled)) for path in pulled.rglob("*") if path.is_file()} == set(outputs(lab, run))


def test_what_an_ordinary_script_writes_comes_home_byte_for_byte(lab: Lab) -> None:
    run = lab.submit(lab.job("plain", SCRIPT, launcher="exec"), "--profile", lab.profile(hosts=["n1"]))
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    found = outputs(lab, run)
    assert set(found) == NAMES
    assert found["model.pt"] == bytes(range(256)) * 9000
    assert found["main.py"] == SCRIPT.encode() + b"# changed by itself"
    assert (folder(lab, run) / "run.sh").stat().st_mode & 0o777 == 0o700
    lab.assert_nothing_left(run)
    listed = lab.orch("outputs", run, "--json").json
    assert ({each["path"] for each in listed["files"]}, listed["left"]) == (NAMES, [])
    assert listed["passed_over"] == [f"/home/alice/.orch/runs/{run}/code/out"]
    assert "10 output files (2.2 MiB)" in lab.orch("outputs", run).out
    assert_fetched(lab, run)
    assert "10 output files (2.2 MiB) went with" in lab.orch("rm", run).err


def test_a_file_that_was_not_sent_and_a_module_that_is_not_there_are_explained(lab: Lab) -> None:
    job = lab.job("misses", "open('data/train.bin')", launcher="exec", args=["--meta=data/meta.pkl"])
    (lab.home / "misses/data").mkdir()
    for name in ("data/train.bin", "data/meta.pkl", ".gitignore"):
        lab.write(f"misses/{name}", "data/\n")
    done = lab.orch("submit", job, "--profile", lab.profile(hosts=["n1"]))
    assert "note: 1 file (6 B) of the code folder is not sent: data/ (6 B) by .gitignore:1 (data/)" in done.err
    run = done.out.strip()
    lab.wait(run)
    assert "data/train.bin is in /home/alice/misses and was not sent: .gitignore:1 (data/)" in lab.orch("why", run).out
    run = lab.submit(lab.job("imports", "import no_such_module", launcher="exec"), "-p", lab.profile(hosts=["n1"]))
    lab.wait(run)
    assert "on n1 has no module no_such_module; " in lab.orch("why", run).out


# Two ranks that write the same names, more than may come home, and something that can't be read.
TWO = """
import os
node = os.environ["ORCH_NODE_RANK"]
for name, data in {"same": "same", "mine": f"of {node}", f"large_{node}": "x" * 3_000_000}.items():
    with open(name, "w") as file:
        file.write(data)
if node == "1":
    os.mkdir("locked")
    open("locked/key", "w").close()
    os.chmod("locked", 0)
"""


def test_what_is_over_the_limit_or_can_not_be_read_is_kept_there_and_fetched_when_asked_for(lab: Lab) -> None:
    job = lab.job("two", TWO, launcher="exec", outputs={"max_size": "4MB"})
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"]))
    ended = lab.wait(run)
    assert (ended.code, "2 files, 2.9 MiB" in ended.err) == (EXIT_FILES_LEFT, True), ended
    assert set(outputs(lab, run)) == {"same", "mine", "large_0", "node_1/mine"}
    page = lab.orch("why", run).out
    assert f"n2:~/.orch/runs/{run}: 2 files, 2.9 MiB: 1 over outputs.max_size of the job" in page
    assert "can't be read there: locked" in page
    assert f"orch pull {run} --outputs" in page
    assert not lab.control.file("n1", f"/home/alice/.orch/runs/{run}").exists()
    kept = lab.orch("gc", "--profile", "lab.yaml")
    assert f"kept: run n2: ~/.orch/runs/{run}: 2 output files in it are not here" in kept.out
    refused = lab.orch("pull", run, "--outputs")
    assert (refused.code, "can't be read there: locked" in refused.err) == (1, True), refused
    assert left(lab, run) == [("n2", 1)]
    lab.control.output("n2", "chmod", "700", f".orch/runs/{run}/code/locked")
    assert_fetched(lab, run)
    found = outputs(lab, run)
    assert (found["mine"], found["node_1/mine"]) == (b"of 0", b"of 1")
    assert set(found) == {"same", "mine", "large_0", "node_1/mine", "node_1/large_1", "node_1/locked/key"}


# Writes a large file, says its hash, and ends when it is let.
LARGE = """
import hashlib, os, sys, time
digest = hashlib.sha256()
with open("large", "wb") as file:
    for _ in range(int(sys.argv[1])):
        piece = os.urandom(1 << 20)
        digest.update(piece)
        file.write(piece)
print("written", digest.hexdigest(), flush=True)
while len(sys.argv) > 2 and not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.05)
with open("last", "w") as file:
    file.write("word")
"""
TABLE = f"""
table = open("metrics.csv", "w", 1)
print("step,acc", "1,0.5", sep="\\n", file=table)
{LARGE}
print("2,0.75", file=table)
"""


def assert_large_is_whole(lab: Lab, run: str) -> None:
    with open(folder(lab, run) / "large", "rb") as file:
        assert lab.log(run) == f"written {hashlib.file_digest(file, 'sha256').hexdigest()}\n"


def copied(lab: Lab, run: str) -> int:
    """The bytes of the large file that have been copied so far."""
    return sum(path.stat().st_size for path in folder(lab, run).glob(".large.*.partial"))


def copying(lab: Lab, **fields: object) -> str:
    """A run whose large file is being copied after its end, until the cable of n1 is cut."""
    lab.control.end_lost_connections("n1")
    lab.control.ignore(LAPTOP, "n1", after=8_000_000)  # no connection brings the whole file, however late it is cut
    profile = lab.profile(hosts=["n1"], **fields)
    run = lab.submit(lab.job("cut", LARGE, launcher="exec", args=[60]), "--profile", profile)
    lab.until(run, "gang_ended")
    wait_until(lambda: copied(lab, run) > 0, "the beginning of the copy")
    lab.control.cut("n1")
    lab.control.ungate(LAPTOP)
    return run


def test_a_copy_whose_cable_is_cut_goes_on_when_the_cable_is_back(lab: Lab) -> None:
    run = copying(lab)
    lab.until(run, "left_behind")
    state = lab.status(run)
    assert (state["state"], "waiting for n1 (n1: " in state["detail"]) == ("finishing", True), state
    lab.control.heal("n1")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert left(lab, run) == []
    assert_large_is_whole(lab, run)
    assert not lab.control.file("n1", f"/home/alice/.orch/runs/{run}").exists()


@pytest.mark.full(
    "tests/unit/backends/mirror/test_watching.py::test_the_wait_for_files_ends_with_its_time_or_by_a_cancel",
    "tests/cluster/test_outputs.py::test_a_copy_whose_cable_is_cut_goes_on_when_the_cable_is_back",
)
def test_a_machine_that_does_not_come_back_in_time_keeps_its_outputs_until_they_are_asked_for(lab: Lab) -> None:
    run = copying(lab, node_wait=3)
    ended = lab.wait(run)
    assert (ended.code, f"n1:~/.orch/runs/{run}" in ended.err) == (EXIT_FILES_LEFT, True), ended
    assert left(lab, run) == [("n1", None)]
    assert not (folder(lab, run) / "large").exists()
    lab.control.heal("n1")
    assert_fetched(lab, run)
    assert_large_is_whole(lab, run)


@pytest.mark.full(
    "tests/cluster/test_outputs.py::test_what_an_ordinary_script_writes_comes_home_byte_for_byte",
)
def test_outputs_come_while_the_run_goes_on_and_after_the_supervisor_was_killed(lab: Lab) -> None:
    profile = lab.profile(hosts=["n1", "n2"])
    run = lab.submit(lab.job("held", TABLE, launcher="exec", args=[5, "hold"]), "--profile", profile)
    for name in ("large", "node_1/large"):
        wait_until((folder(lab, run) / name).exists, f"{name} on the laptop")
    wait_until(lambda: lab.orch("plot", run, "acc", "--json").code == 0, "the program's metrics on the laptop")
    assert lab.orch("plot", run, "acc", "--json").json[0]["points"] == [[1, 0.5]]
    kill(lab.supervisor())
    for host in ("n1", "n2"):
        lab.control.file(host, "/home/alice/go").touch()
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert outputs(lab, run)["last"] == b"word"
    assert lab.orch("plot", run, "acc", "--json").json[0]["points"] == [[1, 0.5], [2, 0.75]]
    lab.assert_nothing_left(run)


# Says on which node of which start it is, in a file that only this start writes.
STARTS = """
import os, time
node, attempt = os.environ["ORCH_NODE_RANK"], os.environ["ORCH_ATTEMPT"]
with open(f"of_{attempt}", "w") as file:
    file.write(node)
print("written", flush=True)
while attempt == "0":
    time.sleep(0.05)
"""


def test_what_a_machine_has_that_a_spare_replaced_is_said_and_fetched(lab: Lab) -> None:
    lab.control.end_lost_connections("n2")
    job = lab.job("starts", STARTS, launcher="exec")
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"], spares=["n3"]))
    lab.until_said(run, "written")
    wait_until(lambda: lab.control.file("n2", f"/home/alice/.orch/runs/{run}/code/of_0").exists(), "the file on n2")
    lab.control.cut("n2")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    page = lab.orch("status", run).out
    assert f"n2:~/.orch/runs/{run}: files not counted: it left the run before its outputs were copied" in page
    assert f"orch pull {run} --outputs" in page
    assert left(lab, run) == [("n2", None)]
    lab.control.heal("n2")
    assert_fetched(lab, run)
    found = outputs(lab, run)
    assert {name: found[name] for name in ("of_0", "of_1", "node_1/of_1", "node_3/of_0")} == {
        "of_0": b"0", "of_1": b"0", "node_1/of_1": b"1", "node_3/of_0": b"1",
    }  # fmt: skip


# So many small files, one of a size, and one that is a hole of that size.
MANY = """
import os, sys
count, size = int(sys.argv[1]), int(sys.argv[2]) << 20
for number in range(count):
    os.makedirs(f"many/{number % 100}", exist_ok=True)
    with open(f"many/{number % 100}/{number}", "w") as file:
        file.write(str(number))
with open("large", "wb") as file:
    for _ in range(size >> 20):
        file.write(os.urandom(1 << 20))
with open("hole", "wb") as file:
    file.truncate(size)
"""


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.full(
    "tests/cluster/test_outputs.py::test_what_an_ordinary_script_writes_comes_home_byte_for_byte",
)
def test_many_large_and_sparse_files_come_home(lab: Lab) -> None:
    count, mebibytes = (10_000, 3072) if os.environ.get("SOAK") else (300, 8)
    job = lab.job("many", MANY, launcher="exec", args=[count, mebibytes], outputs={"max_size": "10GB"})
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1"]))
    assert lab.wait(run, seconds=4 * PATIENCE).code == 0, lab.orch("why", run).out
    assert left(lab, run) == []
    found = folder(lab, run)
    assert {path.read_text() for path in found.glob("many/*/*")} == {str(number) for number in range(count)}
    assert [(found / name).stat().st_size for name in ("large", "hole")] == [mebibytes << 20] * 2
    record = json.loads((found.parent / "nodes/0/outputs.json").read_text())["files"]
    for name in ("large", "hole"):
        with open(found / name, "rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == record[name][4]
    lab.assert_nothing_left(run)


def test_a_full_disk_here_keeps_the_folder_there(lab: Lab) -> None:
    state = "/home/alice/.local/state/orch"
    lab.control.output(LAPTOP, "mkdir", "-p", state)
    alice = next(person.uid for person in PEOPLE if person.name == "alice")
    options = f"size=100m,mode=700,uid={alice},gid={alice}"
    lab.control.output(LAPTOP, "mount", "-t", "tmpfs", "-o", options, "tmpfs", state, user="root")
    lab.control.undo.callback(lab.control.output, LAPTOP, "umount", "--lazy", state, user="root")
    run = lab.submit(lab.job("full", LARGE, launcher="exec", args=[60]), "--profile", lab.profile(hosts=["n1"]))
    assert lab.wait(run).code == EXIT_FILES_LEFT, lab.orch("why", run).out
    page = lab.orch("status", run).out
    assert f"no space left on device for {state}/runs/{run}/outputs" in page
    assert lab.control.file("n1", f"/home/alice/.orch/runs/{run}/code/large").exists()
    lab.control.output(LAPTOP, "mount", "-o", "remount,size=200m", state, user="root")
    done = lab.orch("pull", run, "--outputs")
    assert done.code == 0, done.err
    assert lab.control.output(LAPTOP, "stat", "-c", "%s", f"{state}/runs/{run}/outputs/large") == str(60 << 20)
    assert left(lab, run) == []
    assert not lab.control.file("n1", f"/home/alice/.orch/runs/{run}").exists()
