"""What `orch init` makes of batch and shell scripts, and that all of it loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.operations.submission import batch_script
from orchestrator.operations.submission.init import job_from_script, script_in
from orchestrator.specs.documents.loader import load, load_profile
from orchestrator.specs.job import Job
from orchestrator.specs.profiles import AnyProfile

TORCHRUN = r"""#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH -t 04:00:00   # four hours
#SBATCH -p gpu -A ml
#SBATCH --output=logs/%j.out
#SBATCH --mail-type=END

set -euo pipefail
module load cuda/12.4
source ~/venv/bin/activate
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export NCCL_DEBUG="INFO"
export PYTHONPATH=$HOME/lib:$PYTHONPATH
LR=0.1
srun torchrun \
    --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE \
    --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT \
    train.py --lr ${LR} "$@" > log.txt 2>&1
python report.py
"""
SRUN = """#!/bin/bash
#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --time=90
srun --cpu-bind=none python train.py --epochs 3
"""


def drafted(text: str, folder: Path) -> tuple[Job, AnyProfile | None, tuple[str, ...]]:
    """The job and the profile of a script, loaded, and what was left out."""
    draft = job_from_script(text, "mine")
    for name in ("train.py", "train.sh"):
        (folder / name).touch()
    (folder / "mine.yaml").write_text(draft.job)
    (folder / "any.yaml").write_text("kind: slurm\n")
    job = load("mine.yaml", "any.yaml", cwd=folder).job
    if draft.profile is None:
        return job, None, draft.notes
    (folder / "p.yaml").write_text(draft.profile)
    return job, load_profile("p.yaml", cwd=folder), draft.notes


def test_a_batch_script_with_torchrun(tmp_path: Path) -> None:
    job, profile, notes = drafted(TORCHRUN, tmp_path)
    assert (job.script, job.args, dict(job.env)) == ("train.py", ("--lr", "0.1"), {"NCCL_DEBUG": "INFO"})
    assert profile is not None
    assert (profile.kind, profile.nodes, profile.nproc_per_node, profile.shared) == ("slurm", 2, 4, True)
    assert (profile.partition, profile.account, profile.gres, profile.time) == ("gpu", "ml", "gpu:4", 4 * 3600)
    assert profile.sbatch == {"mail-type": "END"}
    assert profile.setup == (
        "module load cuda/12.4", "source ~/venv/bin/activate", "export PYTHONPATH=$HOME/lib:$PYTHONPATH",
    )  # fmt: skip
    assert [note for note in notes if "report.py" in note] == [
        "'python report.py' was left out: a job starts one program, by one line"
    ]


def test_a_batch_script_whose_tasks_are_the_ranks(tmp_path: Path) -> None:
    job, profile, notes = drafted(SRUN, tmp_path)
    assert (job.script, job.args) == ("train.py", ("--epochs", "3"))
    assert profile is not None
    assert (profile.nodes, profile.nproc_per_node, profile.gpus_per_node, profile.time) == (2, 4, 4, 90 * 60)
    assert profile.cpus_per_task == 32  # of the one agent per node, whose ranks are four tasks' work
    assert notes == ()


@pytest.mark.parametrize(
    ("text", "kind", "nodes", "nproc"),
    [
        ("torchrun --nproc_per_node 2 train.py", "local", 1, 2),
        (
            "export DATA=/d\nbash_var=1\ncd /x\npython -m torch.distributed.run --nproc_per_node=3 train.py",
            "local",
            1,
            3,
        ),
        ("#SBATCH -N 4\npython train.py", "slurm", 1, 1),  # without srun, sbatch starts one process
        ("#SBATCH --nodes=1-2 --ntasks=8\nsrun bash -c 'python train.py'", "slurm", 2, 4),
        ("#SBATCH -N 2\nsrun accelerate launch --num_processes 8 train.py", "slurm", 2, 4),
        ("#SBATCH --array=0-3\n#SBATCH --requeue\ntorchrun --nproc_per_node 2 train.py", "slurm", 1, 2),
    ],
)
def test_numbers_of_nodes_and_ranks(tmp_path: Path, text: str, kind: str, nodes: int, nproc: int) -> None:
    job, profile, _ = drafted(text, tmp_path)
    assert job.script == "train.py"
    assert profile is not None
    assert (profile.kind, profile.nodes, profile.nproc_per_node) == (kind, nodes, nproc)


@pytest.mark.parametrize("text", ["", "echo hi", "#SBATCH -N 2\nhostname\n", "for i in 1 2; do\n  true\ndone"])
def test_a_script_that_starts_no_training_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the script starts no training that can be read"):
        job_from_script(text)


@pytest.mark.parametrize(
    ("text", "args", "env", "nproc", "setup"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py --a 1", ("--a", "1"),
         {"CUDA_VISIBLE_DEVICES": "0,1"}, 2, ()),
        ("PYTHONPATH=. A='b c' torchrun train.py", (), {"PYTHONPATH": ".", "A": "b c"}, 1, ()),
        ("export A=1 B='x y'\nexec torchrun train.py", (), {"A": "1", "B": "x y"}, 1, ()),
        ("nohup python -u -m torch.distributed.launch --use_env --nproc_per_node=4 train.py 'a; b' > 'my log' 2>&1 &\n"
         "echo $!", ("a; b",), {}, 4, ()),
        ("time nice -n 10 stdbuf -oL env A=1 torchrun train.py &>> log & disown", (), {"A": "1"}, 1, ()),
        ("source ~/.bashrc && conda activate rl; torchrun train.py | tee log", (), {}, 1,
         ("source ~/.bashrc", 'eval "$(conda shell.bash hook)"', "conda activate rl")),
        ("source conda.sh\nconda activate rl\ntorchrun train.py", (), {}, 1, ("source conda.sh", "conda activate rl")),
        ("conda run --no-capture-output -n 'my env' torchrun train.py", (), {}, 1,
         ('eval "$(conda shell.bash hook)"', "conda activate 'my env'")),
        ("PYTHONPATH=\"$(dirname $0)/..\":$PYTHONPATH \\\n python -m torch.distributed.run train.py ${@:3}", (), {}, 1,
         ('export PYTHONPATH="./..":$PYTHONPATH',)),
        ("N=${N:-3}\nif [ $N ]; then\n  torchrun --nproc_per_node $N train.py || exit 1\nfi", (), {}, 3, ()),
        ("cat > x <<'EOF'\ntorchrun don't.py\nEOF\n(torchrun train.py) # it's fine", (), {}, 1, ()),
        ("mkdir x && OMP_NUM_THREADS=2 torchrun train.py \"$@\"", (), {"OMP_NUM_THREADS": "2"}, 1, ()),
    ],
)  # fmt: skip
def test_what_stands_around_a_launch_line(
    tmp_path: Path, text: str, args: tuple[str, ...], env: dict[str, str], nproc: int, setup: tuple[str, ...]
) -> None:
    job, profile, _ = drafted(text, tmp_path)
    assert profile is not None
    assert (job.script, job.args, dict(job.env)) == ("train.py", args, env)
    assert (profile.nproc_per_node, profile.setup) == (nproc, setup)


def test_an_activated_environment_has_the_interpreter(tmp_path: Path) -> None:
    for text, python in (
        ("conda activate rl\ntorchrun train.py", "python3"),
        (". venv/bin/activate\ntorchrun train.py", "python3"),
        ("micromamba run -n rl torchrun train.py", "python"),
        ("ulimit -n 4096\ntorchrun train.py", None),
    ):
        _, profile, _ = drafted(text, tmp_path)
        assert profile is not None
        assert profile.python == python


def test_the_folder_of_a_script_is_known(tmp_path: Path) -> None:
    text = 'CONFIG=$1\npython -m torch.distributed.run $(dirname "$0")/train.py $CONFIG'
    draft = job_from_script(text, "mine", "tools/dist_train.sh")
    assert "script: tools/train.py\n" in draft.job
    assert "$CONFIG: a '$' is passed on as it is, because orch starts programs without a shell" in draft.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("set -e\ntorchrun train.py --name 'x\n", "line 2: the quote ' is not closed"),
        ("#SBATCH --job-name='x\nsrun python train.py", "line 1: no closing quotation"),
        ("echo \\", "line 1: no escaped character"),
        ("echo a\x010\x02", "line 1 contains the control character"),
        ("x" * (1 << 16) + "y", "more than 65,536 characters"),
        ("A=$(((((((((((\necho train.py", "starts no training"),
    ],
)
def test_a_script_that_no_shell_would_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job_from_script(text)


def test_which_commands_name_a_script() -> None:
    for command in (["job.sbatch"], ["sbatch", "job"], ["bash", "run.sh"], ["run.sh"]):
        assert script_in(command) == command[-1]
    for command in (["train.py"], ["python", "train.py"], ["bash", "run.sh", "--fast"], ["bash", "-c", "x.sh"]):
        assert script_in(command) is None


@pytest.mark.parametrize(
    ("array", "value", "sweep"),
    [
        ("--array=0-3%2", "--seed $SLURM_ARRAY_TASK_ID", "--seed=0..3"),
        ("-a 1,5", "--seed=${SLURM_ARRAY_TASK_ID}", "--seed=1,5"),
        ("--array 0-9:2", '--seed "$SLURM_ARRAY_TASK_ID"', "--seed=VALUES"),
    ],
)
def test_the_number_of_an_array_s_point_becomes_a_sweep(tmp_path: Path, array: str, value: str, sweep: str) -> None:
    text = f"#SBATCH --account=lab\n#SBATCH {array}\nsrun python train.py --lr 1 {value} --fast"
    job, _, notes = drafted(text, tmp_path)
    assert job.args == ("--lr", "1", "--fast")
    assert any(
        note.startswith("'--seed $SLURM_ARRAY_TASK_ID' was left out: orch submit JOB --sweep")
        and f"--sweep {sweep} starts a run for each value" in note
        for note in notes
    )
    assert not any("a '$' is passed on" in note for note in notes)


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("""python t.py --o '["x>1",""" + ",".join(f'"y{each}"' for each in range(60)) + """]' --lr 1""", 4),
        ("A=" + "a" * 60 + "$(f $(g)) python t.py --lr 1", 2),
        ("A=" + "a" * 60 + "'<' python t.py --lr 1 >" + '"a"' * 40, 2),
    ],
)
def test_a_long_line_is_read_at_once(line: str, args: int) -> None:
    found = batch_script.read_script(line)
    assert (found.target, len(found.args)) == ("t.py", args)


def test_an_assignment_by_a_command_in_a_command() -> None:
    assert batch_script.read_script("A=b$(f $(g)) python t.py").setup == ["export A=b$(f $(g))"]
