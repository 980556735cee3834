"""torch is to use the launcher's store at the launcher's port alone, here and in spawned processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from multiprocessing import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.node.launcher.rank.own_store import ADDR, FLAG, PORT, tell_stores_apart
from tests.patience import PATIENCE

RENDEZVOUS = "torch.distributed.rendezvous"
SERVED = {FLAG: "True", ADDR: "10.0.0.1", PORT: "4242"}


@pytest.fixture
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for torch's module; its function returns the address that it is asked for, and the variables."""

    def _create_c10d_store(hostname: str, port: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"at": (hostname, port), "rest": args, **kwargs, **{name: os.environ.get(name) for name in SERVED}}

    module = ModuleType(RENDEZVOUS)
    vars(module)["_create_c10d_store"] = _create_c10d_store
    monkeypatch.setitem(sys.modules, RENDEZVOUS, module)
    monkeypatch.setattr(util, "spawnv_passfds", util.spawnv_passfds)  # which is put back at the end
    for name, value in SERVED.items():
        monkeypatch.setenv(name, value)
    return module


@pytest.mark.parametrize(("host", "port"), [("localhost", 12355), ("10.0.0.1", 23456)])
def test_at_another_port_rank_0_serves_the_store(
    rendezvous: Any, monkeypatch: pytest.MonkeyPatch, host: str, port: int
) -> None:
    tell_stores_apart()
    monkeypatch.setenv(ADDR, host)
    monkeypatch.setenv(PORT, str(port))
    made = rendezvous._create_c10d_store(host, port, 0, 2, timeout=3)
    assert (made["at"], made["rest"], made["timeout"]) == ((host, port), (0, 2), 3)
    assert (made[FLAG], made[ADDR], made[PORT]) == (None, host, str(port))
    assert os.environ[FLAG] == "True"


def test_at_the_launchers_port_all_connect_wherever_the_program_says_that_it_is(
    rendezvous: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_stores_apart()
    monkeypatch.setenv(ADDR, "localhost")  # where the launcher's store does not listen
    made = rendezvous._create_c10d_store("localhost", 4242, 0, 2)
    assert (made["at"], made[FLAG], made[ADDR]) == (("10.0.0.1", 4242), "True", "10.0.0.1")
    assert os.environ[ADDR] == "localhost"


def test_without_a_store_of_the_launchers_nothing_is_changed(rendezvous: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, spawn = rendezvous._create_c10d_store, util.spawnv_passfds
    monkeypatch.setenv(FLAG, "False")
    tell_stores_apart()
    assert (rendezvous._create_c10d_store, util.spawnv_passfds) == (before, spawn)


def write_what_torch_would_do(path: str) -> None:
    from torch.distributed import rendezvous  # type: ignore[attr-defined]

    made = rendezvous._create_c10d_store("localhost", 12355)
    Path(path).write_text(json.dumps([sys.path[0], made]))


@pytest.mark.parametrize("how", ["spawn", "forkserver", "fork"])
def test_processes_that_a_rank_spawns_tell_them_apart_too(tmp_path: Path, how: str) -> None:
    fake = tmp_path / "torch" / "distributed"
    fake.mkdir(parents=True)
    (fake.parent / "__init__.py").touch()
    (fake / "__init__.py").touch()
    (fake / "rendezvous.py").write_text(
        f"import os\ndef _create_c10d_store(hostname, port):\n    return [hostname, port, os.environ.get({FLAG!r})]\n"
    )
    program = (
        "import sys\nfrom orchestrator.node.launcher.rank.own_store import tell_stores_apart\ntell_stores_apart()\n"
        "from tests.unit.node.launcher.test_own_store import in_a_process\nin_a_process(*sys.argv[1:])\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, how, str(tmp_path / "said")], check=True, timeout=PATIENCE,
        env={**os.environ, **SERVED, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[4]}"},
    )  # fmt: skip
    path0, made = json.loads((tmp_path / "said").read_text())
    assert made == ["localhost", 12355, None]
    assert "node.pyz" not in path0


def in_a_process(how: str, path: str) -> None:
    process = multiprocessing.get_context(how).Process(target=write_what_torch_would_do, args=(path,))
    process.start()
    process.join()
    sys.exit(process.exitcode)
