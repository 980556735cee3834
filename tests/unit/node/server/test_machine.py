"""What a machine's server writes, and the folders in which it writes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.node.server import files, machine, writing
from orchestrator.node.server.request import RefusedError
from orchestrator.node.system.processes import Process, identify, wait_gone
from orchestrator.protocol.task import task_json
from tests.patience import PATIENCE
from tests.unit.specs.test_plan import planned, profile


def test_a_folder_that_others_may_write_is_refused_with_what_to_do(tmp_path: Path) -> None:
    work = tmp_path / "lab" / "orch"
    assert machine.hello({"workdir": str(work)}, b"")[0]["workdir"] == str(work)
    assert [path.stat().st_mode & 0o777 for path in (work, work.parent)] == [0o700, 0o700]
    (work / "cache").mkdir()
    (work / "cache").chmod(0o777)
    with pytest.raises(RefusedError, match=r"cache may be written by others \(mode 0777\).*: chmod go-w"):
        machine.hello({"workdir": str(work), "shared_parent": True}, b"")
    (work / "cache").chmod(0o755)
    work.parent.chmod(0o775)
    with pytest.raises(RefusedError, match=r"lab may be written by others.*set `shared_parent: true` in the profile"):
        machine.hello({"workdir": str(work)}, b"")
    machine.hello({"workdir": str(work), "shared_parent": True}, b"")


def test_a_file_is_written_anew_and_through_no_link(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "run" / "file", tmp_path / "mine"
    elsewhere.write_text("mine")
    path.parent.mkdir()
    for name in ("file", ".file.v1.partial"):
        (path.parent / name).symlink_to(elsewhere)
    writing.write_file({"path": str(path)}, b"one two")
    assert (path.read_bytes(), elsewhere.read_text()) == (b"one two", "mine")
    with pytest.raises(RefusedError, match="file was changed on the way: its sha256 is not 00"):
        writing.write_file({"path": str(path), "sha256": "00"}, b"evil")
    with pytest.raises(OSError, match="it is a link"):
        writing.begin_file({"path": str(path), "version": "v1", "size": 4, "sender": "v1"}, b"")
    assert (path.read_bytes(), elsewhere.read_text()) == (b"one two", "mine")


def test_an_agent_whose_folder_was_removed_under_it_is_known_by_what_the_asker_has_recorded(tmp_path: Path) -> None:
    """Else nobody could tell whether it lives: its run would never end, and the agent would stay."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            found = identify(process.pid)
            assert found is not None
            asked = {"run_id": "gone", "run_dir": str(tmp_path / "gone"), "node": 1}
            agent = [found.pid, found.started]
            look = {**asked, "have": {}, "ranks": [], "alive": True}
            assert files.poll_changes({**look, "alive": None}, b"")[0]["alive"] is None
            assert files.poll_changes({**look, "agent": agent}, b"")[0]["alive"] is True
            assert files.poll_changes({**look, "agent": [0, 0]}, b"")[0]["alive"] is None  # its start was cut off
            assert machine.clean_up({**asked, "agents": {"1": agent}}, b"")[0]["ended"] == 1
            assert process.wait(PATIENCE) == -signal.SIGKILL
            assert files.poll_changes({**look, "agent": agent}, b"")[0]["alive"] is False
        finally:
            process.kill()


def test_the_dead_agent_of_an_earlier_start_is_not_taken_for_that_of_one_that_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start whose agents are about to be there counts as lost, and is made once more."""
    folder = tmp_path / "nodes" / "1"
    folder.mkdir(parents=True)
    me = identify(os.getpid())
    assert me is not None
    dead, living = {"pid": me.pid, "started": me.started - 1}, {"pid": me.pid, "started": me.started}
    look = {"run_dir": str(tmp_path), "node": 1, "have": {}, "ranks": [], "alive": True}

    def says(start: int) -> bool | None:
        alive: bool | None = files.poll_changes({**look, "start": start}, b"")[0]["alive"]
        return alive

    (folder / "start_0").write_text(json.dumps(dead))
    (folder / "agent.json").write_text(json.dumps({**dead, "start": 0}))
    assert (says(0), says(1)) == (False, None)
    (folder / "start_1").touch()  # its server is at it
    assert says(1) is None
    (folder / "agent.json").write_text(json.dumps({**living, "start": 1}))  # the agent was faster than its server
    assert says(1) is True
    (folder / "start_1").write_text(json.dumps(living))
    assert (says(0), says(1)) == (False, True)
    assert says(2) is None
    (folder / "start_2").touch()
    os.utime(folder / "start_2", (1, 1))  # by a clock that is off
    assert says(2) is None
    monkeypatch.setattr(machine, "CUT_OFF_SECONDS", -1.0)
    assert says(2) is False  # its server was killed
    (folder / "start_2").unlink()
    assert files.poll_changes({**look, "start": 2, "agent": [0, 0]}, b"")[0]["alive"] is False


def test_a_start_loads_nothing_of_containers_on_a_node() -> None:
    """Each host of a start reads and compiles what its server loads."""
    loads = "import sys, orchestrator.node.server.machine, orchestrator.node.server.leases; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "orchestrator.node.server.machine" in done.stdout.split()
    assert [name for name in done.stdout.split() if name.startswith("orchestrator.node.container")] == []


def test_the_runs_of_an_array_share_an_archive_which_goes_with_the_last_of_them(tmp_path: Path) -> None:
    shared, archive = tmp_path / "sweeps" / "tune-abc234", tmp_path / "sweeps" / "tune-abc234" / "node.pyz"
    shared.mkdir(parents=True)
    archive.write_bytes(b"zip")
    names = ["tune-abc234.0", "tune-abc234.1"]
    for name in names * 2:  # its answer may have been lost
        asked = {"run_dir": str(tmp_path / "runs" / name), "folder": "slurm", "archive": str(archive)}
        assert writing.prepare_array_run(asked, json.dumps([{"token": "swordfish"}, {}]).encode()) == ({}, b"")
    run = tmp_path / "runs" / names[1]
    assert (run / "node.pyz").stat().st_ino == archive.stat().st_ino
    task = run / "nodes" / "0" / "task.json"
    assert (json.loads(task.read_text()), task.stat().st_mode & 0o777) == ({"token": "swordfish"}, 0o600)
    assert (run / "nodes" / "1" / "task.json").exists()
    assert {path.stat().st_mode & 0o777 for path in (run / "slurm", run / "nodes" / "0")} == {0o700}
    (tmp_path / "runs" / "tune-abc234").mkdir()  # a run of the same name that is in no sweep
    for name in names:
        assert shared.exists()
        assert machine.remove({"run_dir": str(tmp_path / "runs" / name), "run_id": name}, b"")[0]["removed"]
    assert not shared.exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tune-abc234"]


def test_an_agent_is_started_once_and_inherits_its_shell_without_ranks_variables_and_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "MASTER_ADDR", "ORCH_BACKEND", "TOKEN", "KEPT"):
        monkeypatch.setenv(name, "of the shell")
    program = tmp_path / "program"
    program.write_text("import json, os, sys\njson.dump(dict(os.environ), open(f'{sys.argv[2]}.environment', 'w'))\n")
    run_dir, secrets = str(tmp_path / "run"), {"TOKEN": "of the shell"}
    task = replace(planned(a_profile=profile(nodes=1)).tasks[0], run_dir=run_dir, secrets=secrets)
    reply, _ = machine.start_agent({"archive": str(program)}, task_json(task))
    assert wait_gone([Process(reply["pid"], reply["started"])], PATIENCE) == []
    inherited = json.loads((tmp_path / "run/nodes/0/task.json.environment").read_text())
    assert inherited["KEPT"] == "of the shell"
    assert {"RANK", "MASTER_ADDR", "ORCH_BACKEND", "TOKEN"}.isdisjoint(inherited)
    assert json.loads((tmp_path / "run/nodes/0/task.json").read_text())["secrets"] == secrets
    assert machine.start_agent({"archive": str(program)}, task_json(task))[0] == {**reply, "again": True}
