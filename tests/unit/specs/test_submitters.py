"""Scripts that submit their training through submitit are known, with the script that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.specs.here import submitter_of
from orchestrator.specs.submitters import program_of_python, submitter_in

FILES = {
    # as MAE's and ConvNeXt's
    "submitit_pretrain.py": "import os\nimport main_pretrain as trainer\nimport submitit\nimport util\n\n"
    "class Trainer:\n    def __call__(self):\n        import main_pretrain as trainer\n        trainer.main()\n"
    "def main():\n    executor = submitit.AutoExecutor(folder='x')\n",
    "main_pretrain.py": "import torch\ndef main(args): pass\n",
    "util.py": "",
    # from submitit import
    "sub.py": "from submitit import SlurmExecutor as S\nfrom util import log\nfrom main_pretrain import main\n"
    "S('x').submit(main)\n",
    # as DINOv2's: the helper submits, and the package takes its main from a module
    "pkg/run/train.py": "from pkg.run.submit import submit_jobs\nclass T:\n    def __call__(self):\n"
    "        from pkg.train import main as train_main\n        train_main()\nsubmit_jobs(T)\n",
    "pkg/run/submit.py": "import submitit as s\n\ndef submit_jobs(task):\n    s.AutoExecutor('x').submit(task())\n",
    "pkg/train/__init__.py": "from .options import flags\nfrom .train import main\n",
    "pkg/train/options.py": "flags = {}\n",
    "pkg/train/train.py": "def main(): pass\n",
    "alone.py": "import submitit\nsubmitit.LocalExecutor('x').submit(print)\n",
    # none of these submits by itself
    "env.py": "import submitit\nprint(submitit.JobEnvironment().local_rank)\n",
    "both.py": "import torch, submitit\nif args.slurm: submitit.AutoExecutor('x')\nelse: main()\n",
    "kaggle.py": "# writes submission.csv\nclass AutoExecutor: pass\nAutoExecutor()\n",
    "broken.py": "import submitit\nsubmitit.AutoExecutor(\n",
    "deep.py": "import submitit\nx = " + "(" * 5000 + ")" * 5000 + "\n",
    "nul.py": "import submitit\0\n",
    "large.py": "import submitit\nsubmitit.AutoExecutor()\n" + "#" * (1 << 18),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("script", "says", "trains"),
    [
        ("submitit_pretrain.py", "submitit (submitit_pretrain.py:11)", "main_pretrain.py"),
        ("sub.py", "submitit (sub.py:4)", "main_pretrain.py"),
        ("pkg/run/train.py", "submitit (pkg/run/submit.py:4)", "pkg/train/train.py"),
        ("alone.py", "submitit (alone.py:2)", ""),
    ],
)
def test_scripts_that_submit(folder: Path, script: str, says: str, trains: str) -> None:
    found = submitter_in(script, folder)
    assert found is not None
    assert (str(found), found.trains) == (says, trains)
    assert submitter_of(script, folder) is not None


@pytest.mark.parametrize(
    "script",
    ["main_pretrain.py", "env.py", "both.py", "kaggle.py", "broken.py", "deep.py", "nul.py", "large.py", "gone.py"],
)
def test_scripts_that_do_not(folder: Path, script: str) -> None:
    assert submitter_in(script, folder) is None
    assert submitter_of(script, folder) is None


def test_the_script_of_a_command() -> None:
    assert program_of_python(["python3", "-u", "x.py", "y.py"]) == "x.py"
    assert program_of_python(["/opt/bin/python", "x.py"]) == "x.py"
    assert program_of_python(["bash", "x.sh"]) == ""
    assert program_of_python(["python"]) == ""
