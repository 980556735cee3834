"""What `orch init` makes of batch and shell scripts, that all of it loads, and what it refuses with a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.operations.submission import batch_script
from orchestrator.operations.submission.init import job_from_script, script_in
from orchestrator.operations.submission.launcher_files import LauncherFiles
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
"""
SRUN = """#!/bin/bash
#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --time=90
srun --cpu-bind=none python train.py --epochs 3
"""
HEAD = "#SBATCH --nodes=2\n"


def drafted(text: str, folder: Path) -> tuple[Job, AnyProfile | None, tuple[str, ...]]:
    """The job and the profile of a script, loaded, and the notes."""
    for name in ("train.py", "vars.sh", "conda.sh"):
        (folder / name).touch()
    draft = job_from_script(text, "mine", folder)
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
    assert notes == ('"$@": give the arguments of the file to orch submit, after --',)


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
        ("DATA=/d\npython -m torch.distributed.run --nproc_per_node=3 train.py", "local", 1, 3),
        ("#SBATCH -N 1\npython train.py", "slurm", 1, 1),  # without srun, sbatch starts one process
        ("#SBATCH -N 2-2 --ntasks=8\nsrun bash -c 'python train.py'", "slurm", 2, 4),
        ("#SBATCH --ntasks=8 --ntasks-per-node=4\nsrun python train.py", "slurm", 2, 4),
        (f"{HEAD}srun python train.py", "slurm", 2, 1),
        (f"{HEAD}srun -N 2 -n 8 python train.py", "slurm", 2, 4),
        (f"{HEAD}#SBATCH --ntasks-per-node=4\nsrun -N $SLURM_NNODES --ntasks-per-node=1 torchrun --nnodes 2 "
         "--nproc-per-node 3 train.py", "slurm", 2, 3),
        (f"{HEAD}G=4\nN=$((SLURM_NNODES * G))\nsrun accelerate launch --num_machines 2 --num_processes $N train.py",
         "slurm", 2, 4),
        ("#SBATCH -N 1 --gpus=2\n#SBATCH --requeue\ntorchrun --nproc_per_node gpu train.py", "slurm", 1, 2),
        (f"{HEAD}#SBATCH -n2 --gpus-per-task=2\nsrun torchrun --nnodes 2 --nproc_per_node gpu train.py", "slurm", 2, 2),
        ("#SBATCH -G a100:2 -n1\ntorchrun --nproc_per_node auto train.py", "slurm", 1, 2),
    ],
)  # fmt: skip
def test_numbers_of_nodes_and_ranks(tmp_path: Path, text: str, kind: str, nodes: int, nproc: int) -> None:
    job, profile, _ = drafted(text, tmp_path)
    assert job.script == "train.py"
    assert profile is not None
    assert (profile.kind, profile.nodes, profile.nproc_per_node) == (kind, nodes, nproc)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEAD}srun --nodes=1 torchrun train.py", "line 2: srun starts it on 1 nodes, and the file asks for 2"),
        (f"{HEAD}srun -w n1 python train.py", "line 2: srun's --nodelist n1 is not converted"),
        (f"{HEAD}srun -n 3 python train.py", "line 2: srun's 3 tasks are not the same number on each of 2 nodes"),
        (f"{HEAD}#SBATCH --ntasks-per-node=4\nsrun torchrun --nnodes=2 train.py",
         "line 3: srun starts torchrun 4 times on each node"),
        (f"{HEAD}srun torchrun train.py", "line 2: torchrun is started on 2 nodes, and its own options say 1"),
        (f"{HEAD}torchrun --nnodes 2 train.py", "line 2: without srun it is started on the first node only"),
        ("#SBATCH -N1\ntorchrun --nnodes 2 train.py", "line 2: torchrun waits for 2 nodes, and the file asks for one"),
        (f"{HEAD}srun accelerate launch --num_machines 2 --num_processes 3 train.py", "line 2: --num_processes 3 is"),
        (f"{HEAD}srun torchrun --nnodes 2 --nproc_per_node gpu train.py", "line 2: the file does not decide how many"),
        (f"{HEAD}srun torchrun --nnodes 2 --nproc_per_node $N train.py", "line 2: --nproc_per_node $N: only a shell"),
        ("#SBATCH --nodes=2-4\nsrun python train.py", "line 1: --nodes=2-4 leaves the number of nodes to Slurm"),
        ("#SBATCH --ntasks=4\nsrun python train.py", "line 1: --ntasks=4 leaves the number of nodes to Slurm"),
        ("#SBATCH -N2 -n3\nsrun python train.py", "line 1: 3 tasks are not the same number on each of 2 nodes"),
        ("#SBATCH -N2 -G4\nsrun python train.py", "line 1: --gpus is for all nodes together"),
        ("#SBATCH -N1 -n2\n#SBATCH --gpus-per-task=1\nsrun python t.py", "line 2: --gpus-per-task is not"),
        ("#SBATCH --array=0-3\nsrun python t.py", "line 1: --array is refused: orch submit --sweep"),
        ("#SBATCH --signal=USR1@60\nsrun python t.py", "line 1: --signal is not converted"),
        ("#SBATCH --chdir=/data\npython t.py", "line 1: --chdir is refused"),
        ("#SBATCH --no-such=1\npython t.py", "line 1: sbatch has no option --no-such up to Slurm"),
        ("#SBATCH --time=UNLIMITED\npython t.py", "line 1: --time=UNLIMITED can't be read"),
        ("#SBATCH oops\npython t.py", "line 1: 'oops' is not an option of sbatch"),
        ("#SBATCH --nodes\npython t.py", "line 1: #SBATCH --nodes: its value is missing"),
        ("hostname\n#SBATCH -N1\npython t.py", "line 2: sbatch does not read this line, because a command stands"),
        ("#SBATCH hetjob\npython t.py", "line 1: jobs with several components"),
        ("#PBS -l select=2\npython t.py", "line 1: only #SBATCH lines are converted"),
        ("#!/usr/bin/env python\n", "line 1: '#!/usr/bin/env python' is not a shell's file"),
    ],
)  # fmt: skip
def test_what_would_start_other_ranks_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        job_from_script(text, "mine", tmp_path)
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#SBATCH -N1\nfor i in $LIST; do\n  torchrun t.py\ndone", "line 2: 'for i in $LIST' is neither"),
        ("while true; do python t.py; done", "line 1: 'while true' is neither"),
        ("if [ $N ]; then python t.py; fi", "line 1: 'if [ $N ]' is neither"),
        ("f() { python t.py; }", "line 1: '(' is not converted"),
        ("cat > x <<'EOF'\nEOF\npython t.py", "line 1: '<' is not converted"),
        ("python t.py | tee log", "line 1: '|' is not converted"),
        ("python t.py || exit 1", "line 1: '|' is not converted"),
        ("python t.py &\nwait", "line 1: '&' is not converted"),
        ("python a.py\npython b.py", "line 2: it starts a second program, after line 1"),
        ("srun bash -c 'python a.py'\n\nsrun python b.py", "line 3: it starts a second program, after line 1"),
        ("srun python a.py\nsrun bash -c 'mkdir x'", "line 2: it starts a second program, after line 1"),
        ("torchrun t.py\nrsync a b", "line 2: 'rsync a b' would run after the program"),
        ("rsync a b\ntorchrun t.py", "line 1: 'rsync a b' is neither a plain set-up command nor a launch line"),
        ("cd /data\npython t.py", "line 1: 'cd /data' is neither"),
        ("echo a > b\npython t.py", "line 1: 'echo a > b' is neither"),
        ("source no.sh\npython t.py", "line 1: no.sh: there is no such file in this folder"),
        ("srun no.sh", "line 1: no.sh: there is no such file in this folder"),
        ("srun bash -c 'a.sh' x y", "line 1: 'bash -c a.sh x y' is not converted"),
        (
            "\nHOST=$(hostname)\nexport END=$HOST:1\npython t.py",
            "line 3: only a shell on the first node could tell $HOST",
        ),
        ("export A=$(date)\npython t.py", "line 1: only a shell on the first node could tell $(date)"),
        ("export A=$SLURM_NODEID\npython t.py", "line 1: only a shell on the first node could tell $SLURM_NODEID"),
        ("export SLURM_NTASKS=3\npython t.py", "line 1: the export of SLURM_NTASKS is not converted"),
        ("python t.py --seed ${SEEDS[$SLURM_ARRAY_TASK_ID]}", "line 1: only a shell in the job could tell ${SEEDS["),
        ("CONFIG=$1\npython t.py $CONFIG", "line 2: only a shell in the job could tell $1"),
        ("python t.py *.json", "line 1: only a shell in the job could tell *.json"),
        ("python ~/t.py", "line 1: only a shell in the job could tell ~/t.py"),
        ("python t.py --data $HOME/d", "line 1: only a shell in the job could tell $HOME"),
        ("python $@ t.py", "line 1: only a shell in the job could tell $@"),
        ("A=1 B=$(x) python t.py", "line 1: only a shell in the job could tell $(x)"),
        ("srun python t.py\nsrun -N", "line 2: srun -N: its value is missing"),
        ("accelerate launch --config_file no.yaml t.py", "line 1: --config_file no.yaml: there is no such file here"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        job_from_script(text, "mine", tmp_path)
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize("text", ["", "echo hi", "#SBATCH -N 2\nhostname\n", "srun bash -c 'mkdir -p out'"])
def test_a_script_that_starts_no_training_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the script starts no training that can be read"):
        job_from_script(text)


@pytest.mark.parametrize(
    ("text", "args", "env", "nproc", "setup"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py --a 1", ("--a", "1"),
         {"CUDA_VISIBLE_DEVICES": "0,1"}, 2, ()),
        ("PYTHONPATH=. A='b c' torchrun train.py", (), {"PYTHONPATH": ".", "A": "b c"}, 1, ()),
        ("export A=1 B='x y'\nA=2\nexec torchrun train.py", (), {"A": "2", "B": "x y"}, 1, ()),
        ("nohup python -u -m torch.distributed.launch --use_env --nproc_per_node=4 train.py 'a; b' > 'my log' 2>&1",
         ("a; b",), {}, 4, ()),
        ("time nice -n 10 stdbuf -oL env A=1 torchrun train.py &>> log", (), {"A": "1"}, 1, ()),
        ("source vars.sh && conda activate rl; torchrun train.py", (), {}, 1,
         ("source vars.sh", 'eval "$(conda shell.bash hook)"', "conda activate rl")),
        ('eval "$(conda shell.bash hook)"\nE=rl\nconda activate $E\ntorchrun train.py', (), {}, 1,
         ('eval "$(conda shell.bash hook)"', "conda activate rl")),
        ("conda run --no-capture-output -n 'my env' torchrun train.py", (), {}, 1,
         ('eval "$(conda shell.bash hook)"', "conda activate 'my env'")),
        ("N=${ORCH_NO_SUCH:-3}\ntorchrun --nproc_per_node $N train.py", (), {}, 3, ()),
        ("mkdir -p logs/$SLURM_JOB_ID && OMP_NUM_THREADS=2 torchrun train.py \"$@\"", (), {"OMP_NUM_THREADS": "2"}, 1,
         ("mkdir -p logs/$SLURM_JOB_ID",)),
        ("T='python -m torch.distributed.run'\nL=\"$T --nproc_per_node 2\"\nA=(--x 1 # one\n --y)\n"
         '$L train.py "${A[@]}" "a $T"',
         ("--x", "1", "--y", "a python -m torch.distributed.run"), {}, 2, ()),
        ("export A=$B:1\nexport A=$A:2\ntorchrun train.py \\\n  'it''s' \\\n  a#b # c", ("its", "a#b"), {}, 1,
         ("export A=$B:1", "export A=$A:2")),
        ("echo \"it's\" # don't\ndate; torchrun train.py\nexit $?", (), {}, 1, ()),
        ("cd \"$SLURM_SUBMIT_DIR\"\nH=$(hostname)\nexport MASTER_ADDR=$H\npython train.py", (), {}, 1, ()),
    ],
)  # fmt: skip
def test_what_stands_around_a_launch_line(
    tmp_path: Path, text: str, args: tuple[str, ...], env: dict[str, str], nproc: int, setup: tuple[str, ...]
) -> None:
    job, profile, _ = drafted(f"#SBATCH -N1\n{text}" if "cd " in text else text, tmp_path)
    assert (job.script, job.args, dict(job.env)) == ("train.py", args, env)
    assert (profile.nproc_per_node if profile else 1, profile.setup if profile else ()) == (nproc, setup)


def test_a_shell_between_srun_and_the_program(tmp_path: Path) -> None:
    line = (
        'srun bash -c "source vars.sh; export RANK=\\$SLURM_PROCID A=$X; torchrun --nnodes $SLURM_NNODES '
        '--node_rank \\$SLURM_PROCID --nproc_per_node 2 --rdzv_endpoint $HOST:1 train.py \'a b\' \\"\\$A\\""'
    )
    job, profile, _ = drafted(f"{HEAD}X=1\nHOST=$(hostname)\n{line}", tmp_path)
    assert (job.script, job.args, dict(job.env)) == ("train.py", ("a b", "1"), {"A": "1"})
    assert profile is not None
    assert (profile.nodes, profile.nproc_per_node, profile.setup) == (2, 2, ("source vars.sh",))


def test_a_script_beside_the_file_is_read_and_its_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("module load x\npython train.py --nodes $SLURM_NNODES\n")
    job, profile, _ = drafted(f"{HEAD}srun bash run.sh", tmp_path)
    assert job.args == ("--nodes", "2")
    assert profile is not None
    assert profile.setup == ("module load x",)
    (tmp_path / "run.sh").write_text("\nrm -r x\n")
    with pytest.raises(UsageError, match=r"^line 2: \./run\.sh, line 2: 'rm -r x' is neither"):
        job_from_script(f"{HEAD}srun ./run.sh", "mine", tmp_path)


def test_options_that_orch_has_fields_for_or_passes_on(tmp_path: Path) -> None:
    text = (
        "#SBATCH --mem=0 --no-requeue --dependency=afterok:7 --mail-user=a@b --signal=USR2@120 --exclusive\n"
        "#SBATCH --comment-free=1\n"
    ).replace("#SBATCH --comment-free=1\n", "#SBATCH --gpus-per-node=a100:2 --gres=tmp:1\n")
    job, profile, _ = drafted(f"{text}torchrun --nproc_per_node gpu train.py", tmp_path)
    assert profile is not None
    assert profile.sbatch == {
        "mem": "0", "dependency": "afterok:7", "mail-user": "a@b", "signal": "USR2@120", "exclusive": True,
    }  # fmt: skip
    assert (profile.gres, profile.nproc_per_node, job.retry.preempted) == ("tmp:1,gpu:a100:2", 2, 0)


def test_an_activated_environment_has_the_interpreter(tmp_path: Path) -> None:
    for text, python in (
        ("conda activate rl\ntorchrun train.py", "python3"),
        (". ~/venv/bin/activate\ntorchrun train.py", "python3"),
        ("micromamba run -n rl torchrun train.py", "python"),
        ("ulimit -n 4096\ntorchrun train.py", None),
    ):
        _, profile, _ = drafted(text, tmp_path)
        assert profile is not None
        assert profile.python == python


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("set -e\ntorchrun train.py --name 'x\n", "line 2: the quote ' is not closed"),
        ('set -e\n\ntorchrun train.py --name "x\n', 'line 3: the quote " is not closed'),
        ("#SBATCH --job-name='x\nsrun python train.py", "line 1: no closing quotation"),
        ("echo a\r\npython t.py\r\n", "line 1: it ends with a Windows line end"),
        ("\n" * 10_000 + "python t.py", "line 2000: files of more than 2,000 lines or 64 KiB are not converted"),
        ("x" * (1 << 16) + "y", "line 2000: files of more than"),
        ("A=$(((((((((((\necho train.py", "line 1: '$' is not converted"),
    ],
)
def test_a_script_that_no_shell_would_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        job_from_script(text)
    assert refused.value.message.startswith(message)


def test_which_commands_name_a_script() -> None:
    for command in (["job.sbatch"], ["sbatch", "job"], ["bash", "run.sh"], ["run.sh"]):
        assert script_in(command) == command[-1]
    for command in (["train.py"], ["python", "train.py"], ["bash", "run.sh", "--fast"], ["bash", "-c", "x.sh"]):
        assert script_in(command) is None


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("""python t.py --o '["x>1",""" + ",".join(f'"y{each}"' for each in range(60)) + """]' --lr 1""", 4),
        ("python t.py " + "a" * 60_000, 1),
        ("python t.py --lr 1 >" + '"a"' * 40, 2),
        ('python t.py "' + "$x" * 0 + "a b" * 9_000 + '"', 1),
    ],
)
def test_a_long_line_is_read_at_once(line: str, args: int, tmp_path: Path) -> None:
    found = batch_script.read_script(line, LauncherFiles(tmp_path, {}))
    assert (found.target, len(found.args)) == ("t.py", args)
