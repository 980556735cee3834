"""What each rank is started as, by every launcher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.node.launcher.rank.argv import foreign_argv, plan_ranks
from orchestrator.node.launcher.rank.forked import RankStart
from orchestrator.protocol.ranks import RANK_VARIABLES, bind
from orchestrator.protocol.task import NodeTask, Program

SCRIPT, MODULE = Program("script", "train.py", ("--lr", "1")), Program("module", "my.train")
COMMAND = Program("command", "sh", ("-c", "true"))


def task(launcher: str, program: Program = SCRIPT, backend: str = "auto") -> NodeTask:
    return NodeTask("r-1", 1, 2, ("a", "b"), 2, "/run", "/code", program, launcher, backend, "/env/python",
                    ("10.0.0.1",), (20000,))  # fmt: skip


def starts(launcher: str, program: Program = SCRIPT, *, serves_store: bool = True) -> list[RankStart]:
    return plan_ranks(task(launcher, program), bind([2, 2])[1], 3, "10.0.0.1", 4242, serves_store=serves_store)


def test_torchrun_is_given_node_and_address() -> None:
    assert foreign_argv(task("torchrun"), bind([2, 2])[1], "10.0.0.1", 4242) == [
        "/env/python", "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "2",
        "--master-addr", "10.0.0.1", "--master-port", "4242", "train.py", "--lr", "1",
    ]  # fmt: skip
    assert foreign_argv(task("torchrun", MODULE), bind([2, 2])[1], "m", 1)[-2:] == ["-m", "my.train"]


def test_accelerate_counts_all_processes() -> None:
    argv = foreign_argv(task("accelerate"), bind([2, 2])[1], "10.0.0.1", 4242)
    assert "--multi_gpu" not in foreign_argv(task("accelerate"), bind([1])[0], "10.0.0.1", 4242)
    assert argv == [
        "/env/python", "-m", "accelerate.commands.launch", "--num_machines", "2", "--machine_rank", "1",
        "--num_processes", "4", "--main_process_ip", "10.0.0.1", "--main_process_port", "4242",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--multi_gpu", "train.py", "--lr", "1",
    ]  # fmt: skip
    assert foreign_argv(task("accelerate", MODULE), bind([2])[0], "m", 1)[-2:] == ["--module", "my.train"]


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_another_launcher_is_one_process_and_makes_the_rank_variables_itself(launcher: str) -> None:
    (start,) = starts(launcher)
    assert (start.rank, start.argv) == (2, tuple(foreign_argv(task(launcher), bind([2, 2])[1], "10.0.0.1", 4242)))
    assert all(name.startswith("ORCH_") for name in start.environment)
    assert (start.members, start.setup["folder"]) == ((2, 3), "/run/nodes/1/attempt_3")  # its ranks answer there
    assert start.defaults["TORCH_FR_DUMP_TEMP_FILE"] == "/run/nodes/1/attempt_3/flight_"
    assert "ORCH_BEAT_FILE" not in start.environment  # it would be the same one for all its ranks


@pytest.mark.parametrize("launcher", ["fork", "exec", "torchrun", "accelerate"])
def test_every_process_is_shown_the_nodes_gpus_and_an_instance_of_mig_by_its_own_rank(launcher: str) -> None:
    def shown(given: str, visible: str) -> list[str]:
        told = replace(task(launcher), env={"ORCH_GPUS": given})
        found = plan_ranks(
            told, bind([2, 2])[1], 0, "m", 1, serves_store=True, visible={"CUDA_VISIBLE_DEVICES": visible}
        )
        return [each.environment["CUDA_VISIBLE_DEVICES"] for each in found]

    processes = 2 if launcher in ("fork", "exec") else 1
    assert shown("GPU-a,GPU-b", "3,1") == ["3,1"] * processes
    assert shown("MIG-a,MIG-b", "MIG-a,MIG-b") == (["MIG-a", "MIG-b"] if processes == 2 else ["MIG-a,MIG-b"])


@pytest.mark.parametrize(
    ("launcher", "program", "argv"),
    [
        ("fork", SCRIPT, None),
        ("fork", MODULE, None),
        ("exec", SCRIPT, ("/env/python", "train.py", "--lr", "1")),
        ("exec", MODULE, ("/env/python", "-m", "my.train")),
        ("fork", COMMAND, ("sh", "-c", "true")),
        ("exec", COMMAND, ("sh", "-c", "true")),
    ],
)
def test_forked_and_executed_ranks(launcher: str, program: Program, argv: tuple[str, ...] | None) -> None:
    first, second = starts(launcher, program)
    assert first.argv == second.argv == argv
    assert [(start.rank, start.environment["LOCAL_RANK"], start.cwd) for start in (first, second)] == [
        (2, "0", "/code"), (3, "1", "/code"),
    ]  # fmt: skip
    assert second.error_file == second.environment["TORCHELASTIC_ERROR_FILE"] == "/run/nodes/1/attempt_3/error_3.json"


def test_ranks_bind_the_port_themselves_where_nobody_serves_the_store() -> None:
    assert {start.environment["TORCHELASTIC_USE_AGENT_STORE"] for start in starts("fork")} == {"1"}
    bound = starts("exec", COMMAND, serves_store=False)
    assert {start.environment["TORCHELASTIC_USE_AGENT_STORE"] for start in bound} == {"False"}
    (alone,) = plan_ranks(task("fork"), bind([1])[0], 3, "10.0.0.1", 4242, serves_store=True)
    assert alone.environment["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert alone.setup["withheld"] == {}


def test_a_program_that_runs_alone_gets_the_variables_only_beside_other_ranks() -> None:
    program = replace(SCRIPT, runs_alone=True)
    (alone,) = plan_ranks(task("fork", program), bind([1])[0], 3, "10.0.0.1", 4242, serves_store=True)
    assert not set(RANK_VARIABLES) & set(alone.environment)
    assert alone.environment["ORCH_RUN_ID"] == "r-1"
    withheld = alone.setup["withheld"]
    assert (withheld["RANK"], withheld["MASTER_PORT"]) == ("0", "4242")
    assert {start.environment["WORLD_SIZE"] for start in starts("fork", program)} == {"4"}


def test_a_batch_file_as_it_is_gets_no_variables_of_a_rank_and_all_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", "/home/alice")
    program = Program("command", "/bin/bash", ("job.sbatch",), own_ranks=True)
    (start, _) = starts("auto", program)
    assert start.argv == ("/bin/bash", "job.sbatch")
    assert start.environment["SLURM_SUBMIT_DIR"] == "/code"
    assert all(name.startswith("ORCH_") for name in start.environment if name != "SLURM_SUBMIT_DIR")
    assert (start.defaults, start.hears_all) == ({}, True)


def test_a_rank_finds_its_numbers_in_slurms_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(name.startswith("SLURM_") for name in starts("fork")[1].environment)
    monkeypatch.setenv("SLURM_PROCID", "1")  # the agent's own: the number of its node
    found = starts("fork")[1].environment
    assert {name: found[f"SLURM_{name}"] for name in ("PROCID", "LOCALID", "NODEID", "NTASKS", "TASKS_PER_NODE")} == {
        "PROCID": "3", "LOCALID": "1", "NODEID": "1", "NTASKS": "4", "TASKS_PER_NODE": "2(x2)",
    }  # fmt: skip
