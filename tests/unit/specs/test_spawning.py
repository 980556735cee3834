"""Which programs start their ranks by themselves, and how many ranks orch then starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import orch
from orchestrator.errors import UsageError
from orchestrator.prepare.notes import notes_on_request
from orchestrator.prepare.prepare import Request, plan_for, prepare
from orchestrator.specs.plan import nproc_by_node
from orchestrator.specs.spawning import needs_variables, spawning_in

MULTIGPU = """import os
import torch
import torch.multiprocessing as mp
from torch.distributed import init_process_group

def ddp_setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    init_process_group(backend="nccl", rank=rank, world_size=world_size)

if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(main, args=(world_size,), nprocs=world_size)
"""
IMAGENET = """import os
import torch.multiprocessing as mp
import torch.distributed as dist
if args.dist_url == "env://" and args.world_size == -1:
    args.world_size = int(os.environ["WORLD_SIZE"])
if args.multiprocessing_distributed:
    mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))
"""
PROCESSES = """import torch.distributed as dist
from torch.multiprocessing import Process

def init_process(rank, size, fn, backend="gloo"):
    dist.init_process_group(backend, rank=rank, world_size=size)

for rank in range(2):
    Process(target=init_process, args=(rank, 2, run)).start()
"""
CONTEXT = PROCESSES.replace("from torch.multiprocessing import Process", "import torch.multiprocessing as mp").replace(
    "    Process(", "    mp.get_context('spawn').Process("
)
BOTH = "import os\nimport torch.multiprocessing as mp\nif 'LOCAL_RANK' not in os.environ:\n    mp.spawn(main)\n"
OPTION = "import torch.multiprocessing as mp\nparser.add_argument('--local_rank')\nmp.spawn(main)\n"
HELPER = """import os
from multiprocessing import Process
Process(target=write_logs).start()
dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
"""
WORKER = (
    "import multiprocessing\nmultiprocessing.Process(target=load).start()\ndist.init_process_group(backend='gloo')\n"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (MULTIGPU, ("torch.multiprocessing.spawn", 14, False)),
        (IMAGENET, ("torch.multiprocessing.spawn", 7, True)),
        (CONTEXT, ("Process", 8, False)),
        (PROCESSES, ("torch.multiprocessing.Process", 8, False)),
        ("from torch.multiprocessing import spawn as go\ngo(f)\n", ("torch.multiprocessing.spawn", 2, False)),
        ("import torch.multiprocessing\ntorch.multiprocessing.spawn(f)\n", ("torch.multiprocessing.spawn", 2, False)),
        (BOTH, None),
        (OPTION, None),
        (HELPER, None),
        (WORKER, None),
    ],
)
def test_a_program_that_starts_its_ranks_is_known(text: str, found: tuple[str, int, bool] | None) -> None:
    spawning = spawning_in(text.encode(), "x.py")
    assert (spawning and (spawning.call, spawning.line, spawning.knows_nodes)) == found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "multigpu.py").write_text(MULTIGPU)
    (tmp_path / "imagenet.py").write_text(IMAGENET)
    (tmp_path / "lab.yaml").write_text("{kind: ssh, hosts: [{host: n1, nproc_per_node: 4}, n2, n3]}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("job", "options", "ranks"),
    [
        ("script: multigpu.py", {"flags": {"profile.nodes": 1}}, [1]),
        ("module: multigpu", {"flags": {"profile.nodes": 1}}, [1]),
        ("command: [python, multigpu.py, '2']", {"flags": {"profile.nodes": 1}}, [1]),
        ("script: imagenet.py", {}, [1, 1, 1]),
        ("script: multigpu.py", {"flags": {"profile.nodes": 2}}, [1, 1]),
        ("script: multigpu.py", {"sets": ("profile.nproc_per_node=2",)}, [4, 2, 2]),
        ("script: multigpu.py", {"keeps_ranks": True}, [4, None, None]),
        ("{script: multigpu.py, launcher: torchrun}", {}, [4, None, None]),
    ],
)
def test_it_is_started_once_unless_the_user_says_how_often(
    folder: Path, job: str, options: dict[str, object], ranks: list[int | None]
) -> None:
    (folder / "job.yaml").write_text(job)
    prepared = prepare(folder, Request("job.yaml", "lab.yaml", **options))  # type: ignore[arg-type]
    assert nproc_by_node(prepared.profile) == ranks
    said = [
        note
        for note in notes_on_request(prepared, Request("job.yaml", "lab.yaml"))
        if "starts its own processes" in note
    ]
    assert len(said) == (prepared.spawning is not None)
    assert plan_for(folder, prepared).tasks[0].all_gpus == (prepared.spawning is not None)


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ('rank = int(os.environ["RANK"])', True),
        ("addr = environ [ 'MASTER_ADDR' ]", True),
        ('if os.environ["WORLD_SIZE"] == "1":', True),
        ('rank = int(os.environ.get("RANK", -1))', False),
        ('LOCAL_RANK = int(os.getenv("LOCAL_RANK", -1))', False),
        (MULTIGPU, False),
        ("", False),
    ],
)
def test_programs_that_fail_without_a_launchers_variables(text: str, needs: bool) -> None:
    assert needs_variables(text.encode()) == needs


def test_a_console_launcher_is_started_on_one_node(folder: Path) -> None:
    (folder / "job.yaml").write_text("command: [trl, sft]\n")
    prepared = prepare(folder, Request("job.yaml", "lab.yaml", flags={"profile.nodes": 1}))
    assert nproc_by_node(prepared.profile) == [1]
    assert plan_for(folder, prepared).tasks[0].program.runs_alone
    (note,) = (
        note
        for note in notes_on_request(prepared, Request("job.yaml", "lab.yaml"))
        if "starts its own processes" in note
    )
    assert note.endswith("so orch starts it once: 1 rank on 1 node")


@pytest.mark.parametrize(
    ("job", "options", "nodes", "advice"),
    [
        ("command: [trl, sft]", {}, 3, "--nodes 1, .* with --nproc-per-node 1"),
        ("command: [trl, sft]", {"flags": {"profile.nodes": 2}}, 2, "--nodes 1, .* with --nproc-per-node 1"),
        ("script: multigpu.py", {}, 3, "--nodes 1, .* with --nodes 3"),
    ],
)
def test_no_run_has_fewer_nodes_than_its_profile(
    folder: Path, job: str, options: dict[str, object], nodes: int, advice: str
) -> None:
    (folder / "job.yaml").write_text(job)
    with pytest.raises(UsageError, match=f"do not find each other on the {nodes} nodes of profile lab") as error:
        prepare(folder, Request("job.yaml", "lab.yaml", **options))  # type: ignore[arg-type]
    assert re.search(advice, str(error.value.hint))


def test_orch_run_says_so_and_a_launcher_in_the_line_is_obeyed(folder: Path) -> None:
    def dry_run(*line: str) -> str:
        found = CliRunner().invoke(orch, ["run", "-p", "local", "--dry-run", "--", *line], catch_exceptions=False)
        return found.output

    alone = dry_run("python", "multigpu.py", "2", "1")
    note = "note: multigpu.py:14 starts its own processes (torch.multiprocessing.spawn), so orch starts it once: 1 rank"
    assert note in alone
    assert "ORCH_NNODES=1" in alone
    assert "LOCAL_RANK" not in alone
    assert "WORLD_SIZE=2" in dry_run("torchrun", "--nproc_per_node", "2", "multigpu.py")
    assert "starts its own processes" not in dry_run("torchrun", "multigpu.py")
