"""A launcher of ranks in a job's own command, or in the script that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.specs.launchers import console_launcher, launcher_in

SCRIPTS = {
    "run.sh": "#!/bin/bash\n# torchrun train.py\nset -e\nexport NPROC=2\n"
    "torchrun --nproc_per_node $NPROC train.py \\\n  --lr 1\n",
    "activated.sh": "source venv/bin/activate && exec python -m torch.distributed.run train.py\n",
    "job.sbatch": "#!/bin/sh\n#SBATCH -N 2\nOMP_NUM_THREADS=1 srun python train.py\n",
    "own.sh": "#!/bin/sh\npip list | grep torchrun\npython train.py --launcher torchrun\naccelerate=1\n",
    "train.py": "#!/usr/bin/env python3\n# torchrun train.py\ntorchrun = 1\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary").write_bytes(b"\x7fELF\xff\xfe torchrun")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("torchrun --nproc_per_node 2 train.py", "torchrun"),
        ("/opt/env/bin/torchrun train.py", "torchrun"),
        ("accelerate launch train.py", "accelerate launch"),
        ("python3 -m torch.distributed.launch train.py", "python3 -m torch.distributed.launch"),
        ("env A=1 srun -n 2 hostname", "srun"),
        ("bash run.sh", "torchrun (run.sh:5)"),
        ("./run.sh", "torchrun (./run.sh:5)"),
        ("sh -e activated.sh", "python -m torch.distributed.run (activated.sh:1)"),
        ("bash job.sbatch --lr 1", "srun (job.sbatch:3)"),
        ("bash own.sh", ""),
        ("./train.py", ""),
        ("./binary", ""),
        ("bash gone.sh", ""),
        ("python train.py torchrun", ""),
        ("echo torchrun", ""),
        ("accelerate env", ""),
        ("sh", ""),
        ("A=1", ""),
    ],
)
def test_what_a_command_starts(folder: Path, command: str, says: str) -> None:
    assert str(launcher_in(command.split(), folder) or "") == says


def test_what_a_shell_is_given_as_text(folder: Path) -> None:
    assert str(launcher_in(["bash", "-lc", "cd /tmp; torchrun train.py"], folder)) == "torchrun"
    assert launcher_in(["bash", "-lc", "echo torchrun"], folder) is None


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment whose console scripts import what real ones import."""
    env = tmp_path / "env"
    packages = env / "lib" / "python3.12" / "site-packages"
    (packages / "theirs" / "cli").mkdir(parents=True)
    (packages / "theirs" / "cli" / "__init__.py").write_text("def main():\n    import accelerate.commands.launch\n")
    (packages / "trains.py").write_text("# see torch.distributed.run\ndef main(): ...\n")
    (env / "bin").mkdir()
    entries = {
        "trl": "trl.cli", "tune": "ray.tune.cli", "composer": "composer.cli.launcher", "their-train": "theirs.cli",
        "trains": "trains",
    }  # fmt: skip
    for name, module in entries.items():
        (env / "bin" / name).write_text(f"#!/opt/env/bin/python3.12\nimport sys\nfrom {module} import main\n")
    (env / "bin" / "axolotl").write_bytes(b"\x7fELF\xff from axolotl.cli import main")
    for each in (env / "bin").iterdir():
        each.chmod(0o755)
    return env


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("trl sft --model_name m", "trl sft starts its own processes (trl.cli)"),
        ("env A=1 uv run trl dpo", "trl dpo starts its own processes (trl.cli)"),
        ("composer -n 2 train.py", "composer starts its own processes (composer.cli.launcher)"),
        ("their-train --lr 1", "their-train starts its own processes (theirs.cli)"),
        (
            "llamafactory-cli train x.yaml",
            "llamafactory-cli train starts its own processes (llamafactory)",
        ),  # elsewhere
        ("trl env", ""),
        ("trl", ""),
        ("tune run recipe", ""),  # a program of another package
        ("axolotl train x.yaml", ""),
        ("trains", ""),
        ("gone train", ""),
    ],
)
def test_console_scripts_that_are_launchers(environment: Path, command: str, says: str) -> None:
    assert str(console_launcher(command.split(), [str(environment / "bin")]) or "") == says


def test_the_line_is_kept(folder: Path) -> None:
    found = launcher_in(["bash", "run.sh"], folder)
    assert found is not None
    assert found.text == "torchrun --nproc_per_node $NPROC train.py"
