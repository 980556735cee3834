"""safetensors files, read by the safetensors package; and what a run by hand would take."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from orchestrator.errors import OrchError, UsageError
from orchestrator.operations import export as exports
from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest
from orchestrator.runs.store import RunDir
from orchestrator.specs.border import valid
from orchestrator.specs.job import Job
from orchestrator.specs.plan import RunPaths, plan
from orchestrator.specs.profile import LocalProfile
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint.export import weights, write
from orchestrator.training.errors import CheckpointError

TENSORS = {
    "layer.weight": torch.randn(3, 5),
    "layer.half": torch.randn(7).to(torch.bfloat16),
    "one": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.empty(0, 4),
    "flags": torch.tensor([True, False, True]),
    "turned": torch.arange(6).reshape(2, 3).T,
}


def test_what_is_written_is_what_others_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write(path, TENSORS, {"step": "7"})
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"step": "7"}
    assert list(tmp_path.iterdir()) == [path]


def test_what_can_not_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"w can't be written: .* no numbers of type torch\.complex128"):
        write(tmp_path / "x", {"v": torch.zeros(1), "w": torch.zeros(2, dtype=torch.complex128)}, {})
    with pytest.raises(CheckpointError, match=r"could not be written: .*No such file or directory"):
        write(tmp_path / "nowhere" / "x", TENSORS, {})
    assert list(tmp_path.iterdir()) == []


def test_tied_and_cut_weights_are_written_each_for_itself(tmp_path: Path) -> None:
    shared = torch.randn(4, 3)
    tied = {"embedding": shared, "head": shared, "row": shared[1], "turned": shared.T, "empty": torch.empty(0)}
    write(tmp_path / "tied", tied, {})
    found = load_file(tmp_path / "tied")
    assert found.keys() == tied.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tied.items())


def test_without_the_package_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(CheckpointError, match=r"safetensors is not installed for .* -m pip install safetensors"):
        write(tmp_path / "x", TENSORS, {})
    assert list(tmp_path.iterdir()) == []


def test_the_model_of_any_checkpoint_is_found(tmp_path: Path) -> None:
    model = {"module.w": torch.ones(2)}
    for step, state in enumerate(({"model": model}, {"objects": {"model": model}}, {"other": 1})):
        checkpoints.write(tmp_path, state, Manifest(step=step))
    assert weights(tmp_path / "step_00000000")[0].keys() == {"w"}
    assert weights(tmp_path / "step_00000001")[1].step == 1
    with pytest.raises(CheckpointError, match="holds no 'model', only other"):
        weights(tmp_path / "step_00000002")


def planned(tmp_path: Path, nproc: object, **job: object) -> RunDir:
    """A run that has a plan and nothing else."""
    fields = {"name": "j", "script": "train.py", "args": ["--x", "a b"], "env": {"WORD": "it's"}, **job}
    made = valid(Job, {name: value for name, value in fields.items() if value is not None})
    profile = valid(LocalProfile, {"kind": "local", "name": "p", "nodes": 2, "nproc_per_node": nproc})
    launch = plan(made, profile, "j-abcdef", RunPaths("/run", "/my code", "/in", "python3", "python3"))
    (tmp_path / "plan.json").write_text(json.dumps(launch.to_json()))
    return RunDir(tmp_path)


def test_commands_by_hand_are_quoted_and_name_every_node(tmp_path: Path) -> None:
    text = exports.torchrun_commands(planned(tmp_path, [2, 1]), 23456)
    assert text.count("cd '/my code'") == 2
    assert "WORD='it'\"'\"'s' " in text
    assert "--nnodes 2 --node-rank 0 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 23456" in text
    assert text.endswith("--nnodes 2 --node-rank 1 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port 23456 "
                         "train.py --x 'a b'")  # fmt: skip


def test_no_secret_is_in_commands_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIN", "canary-of-the-shell")
    env = {"HF_TOKEN": "canary-token", "WORD": "of canary-token", "LOG_KEY": "short"}
    args = ["--x", "canary-of-the-shell", "--max-tokens", "5"]
    run = planned(tmp_path, 2, args=args, env=env, secrets=["PIN"])
    for text in (exports.torchrun_commands(run, 23456), exports.accelerate_config(run, 1, 23456)):
        assert "canary" not in text
        assert "# export these first, because secrets are not written to this file: PIN, HF_TOKEN\n" in text
        assert text.startswith("# *** stands for a secret: write it there\n")
        assert " LOG_KEY=short " in text
        assert " --x *** --max-tokens 5" in text


def test_the_config_of_accelerate_is_the_plans(tmp_path: Path) -> None:
    run = planned(tmp_path, 2, script=None, args=None, training={"task": "t.py", "precision": "bf16"})
    lines = exports.accelerate_config(run, 1, 23456).splitlines()
    values = dict(line.split(": ") for line in lines if not line.startswith("#"))
    names = ("num_machines", "machine_rank", "num_processes", "main_process_ip", "main_process_port", "mixed_precision")
    assert [values[name] for name in names] == ["2", "1", "4", "127.0.0.1", "23456", "'bf16'"]


def test_what_can_not_be_handed_over_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="different numbers of ranks"):
        exports.accelerate_config(planned(tmp_path, [2, 1]), 0, 1)
    with pytest.raises(UsageError, match="has no node 2"):
        exports.accelerate_config(planned(tmp_path, 2), 2, 1)
    with pytest.raises(UsageError, match="have not started yet"):
        exports.torchrun_commands(planned(tmp_path, "auto"), 1)
    with pytest.raises(UsageError, match="runs a `command`"):
        exports.torchrun_commands(planned(tmp_path, 2, script=None, command=["ls"]), 1)
    (tmp_path / "plan.json").unlink()
    with pytest.raises(UsageError, match="has no plan"):
        exports.torchrun_commands(RunDir(tmp_path), 1)


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "run")
    checkpoints.write(run.path / "checkpoints", {"other": 1}, checkpoints.Manifest(step=1))
    package = tmp_path / "here" / "orchestrator"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(package.parent)
    with pytest.raises(OrchError, match="holds no 'model'"):
        exports.safetensors(run, "latest", None)
    assert not (tmp_path / "ran").exists()
