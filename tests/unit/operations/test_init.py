"""What `orch init` writes, and that all of it loads again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.operations.submission.init import (
    Draft,
    job_from_command,
    profile_from_hosts,
    profile_from_sinfo,
    text_value,
)
from orchestrator.specs.documents.loader import load, load_profile
from orchestrator.specs.job import Job
from orchestrator.specs.profile import LocalProfile, SshProfile
from orchestrator.specs.profiles import AnyProfile
from orchestrator.specs.sbatch_options import seconds_in
from orchestrator.specs.slurm_profile import SlurmProfile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every script is that the commands name."""
    made = tmp_path_factory.mktemp("init")
    for name in ("train.py", "run.sh"):
        (made / name).touch()
    (made / "run.sh").chmod(0o755)
    return made


def loaded_profile(text: str, folder: Path) -> AnyProfile:
    (folder / "p.yaml").write_text(text)
    return load_profile("p.yaml", cwd=folder)


def loaded_job(text: str, folder: Path) -> Job:
    (folder / "j.yaml").write_text(text)
    (folder / "any.yaml").write_text(f"kind: slurm\nruntime: {'docker' if 'container:' in text else 'none'}\n")
    return load("j.yaml", "any.yaml", cwd=folder).job


def loaded(draft: Draft, folder: Path) -> tuple[Job, AnyProfile | None]:
    profile = loaded_profile(draft.profile, folder) if draft.profile is not None else None
    return loaded_job(draft.job, folder), profile


@pytest.mark.parametrize(
    ("command", "program", "args", "nodes", "nproc"),
    [
        ("torchrun --nnodes 2 --nproc_per_node 4 train.py --lr 1e-3", "train.py", ("--lr", "1e-3"), 2, 4),
        ("torchrun --nnodes=2 --nproc-per-node=4 train.py", "train.py", (), 2, 4),
        ("torchrun --standalone --nproc-per-node=gpu train.py", "train.py", (), 1, "auto"),
        ("torchrun train.py", "train.py", (), 1, 1),
        ("torchrun --nnodes=1:4 --max-restarts 3 --rdzv_endpoint=$(hostname):1 train.py", "train.py", (), 4, 1),
        ("torchrun --nnodes 1 -m pkg.train --a 'b c'", "pkg.train", ("--a", "b c"), 1, 1),
        ("torchrun --nproc_per_node 2 --no-python ./run.sh x", "./run.sh", ("x",), 1, 2),
        ("torchrun --nproc_per_node 2 -- train.py --nnodes 3", "train.py", ("--nnodes", "3"), 1, 2),
        ("$ python3 -m torch.distributed.run --nproc_per_node 2 \\\n  train.py", "train.py", (), 1, 2),
        ("python -m torch.distributed.launch --use_env --nproc_per_node=2 train.py", "train.py", (), 1, 2),
        ("accelerate launch --multi_gpu --num_machines 2 --num_processes 8 train.py -x", "train.py", ("-x",), 2, 4),
        ("accelerate launch train.py", "train.py", (), 1, "auto"),
        (
            "deepspeed --num_nodes 2 --num_gpus=4 train.py --deepspeed d.json",
            "train.py",
            ("--deepspeed", "d.json"),
            2,
            4,
        ),
        ("srun -N 4 --gpus-per-node=8 torchrun --nnodes 4 --nproc_per_node=8 train.py", "train.py", (), 4, 8),
        ("srun -N4 --ntasks-per-node=2 -u python -u train.py", "train.py", (), 4, 2),
        ("srun --nodes=4 --ntasks 8 python train.py", "train.py", (), 4, 2),
        ("srun -n 8 --ntasks-per-node 4 python -m pkg", "pkg", (), 2, 4),
        ("srun hostname", "hostname", (), 1, 1),
        ("uv run torchrun --nproc_per_node 2 train.py", "train.py", (), 1, 2),
    ],
)
def test_launch_lines(
    command: str, program: str, args: tuple[str, ...], nodes: int, nproc: int | str, folder: Path
) -> None:
    job, profile = loaded(job_from_command(command), folder)
    words = (job.script or job.module, job.args) if job.command is None else (job.command[0], job.command[1:])
    assert words == (program, args)
    assert profile is not None
    assert (profile.nodes, profile.nproc_per_node) == (nodes, nproc)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("deepspeed --num_gpus=4 train.py", "--local_rank"),
        ("deepspeed --no_local_rank train.py", None),
        ("python -m deepspeed.launcher.runner --module pkg.train", "--local_rank"),
        ("python -m torch.distributed.launch --nproc_per_node=2 train.py", "--local-rank"),
        ("python -m torch.distributed.launch --use-env train.py", None),
        ("torchrun train.py", None),
    ],
)
def test_a_launcher_that_passes_the_local_rank_as_an_option_is_imitated(
    command: str, option: str | None, folder: Path
) -> None:
    job, _ = loaded(job_from_command(command), folder)
    assert job.local_rank_option == option


def test_slurm_options_become_a_profile(folder: Path) -> None:
    command = (
        "srun -pgpu -A proj --qos=high -t 90 --mem 64G -c8 --gpus-per-node=a100:4 -C 'a&b' --exclusive "
        "--reservation=ours --mpi=pmix --export=ALL --job-name my.job -N 2 torchrun "
        "--nnodes 2 --nproc_per_node 4 train.py"
    )
    draft = job_from_command(command)
    job, profile = loaded(draft, folder)
    assert job.name == "my.job"
    assert isinstance(profile, SlurmProfile)
    assert (profile.partition, profile.account, profile.qos, profile.time) == ("gpu", "proj", "high", 5400)
    assert (profile.mem, profile.cpus_per_task, profile.gres) == (64 << 30, 8, "gpu:a100:4")
    assert profile.constraint == "a&b"
    assert profile.sbatch == {"exclusive": True, "reservation": "ours"}


def test_a_container_of_pyxis(folder: Path) -> None:
    draft = job_from_command("srun --container-image=r#i:1 --container-mounts=/d:/d,/e:/f:ro python train.py")
    job, profile = loaded(draft, folder)
    assert job.container is not None
    assert job.container.image == "r#i:1"
    assert [(m.source, m.target, m.read_only) for m in job.container.mounts] == [
        ("/d", "/d", False),
        ("/e", "/f", True),
    ]
    assert profile is not None
    assert profile.runtime == "pyxis"


def test_variables(folder: Path) -> None:
    line = "CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=4 MASTER_PORT=29500 env X='a b' Y= torchrun train.py"
    draft = job_from_command(line)
    job, _ = loaded(draft, folder)
    assert job.env == {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "4", "X": "a b", "Y": ""}
    assert "MASTER_PORT was left out: orch sets it" in draft.notes


def test_a_plain_command_implies_no_profile(folder: Path) -> None:
    draft = job_from_command("python -c 'print(1)'")
    assert draft.profile is None
    assert loaded(draft, folder)[0].command == ("python", "-c", "print(1)")
    draft = job_from_command("/venv/bin/python train.py")
    assert loaded(draft, folder)[1] == LocalProfile(
        kind="local", name="p", nproc_per_node="auto", python="/venv/bin/python"
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "starts no program"),
        ("A=1", "starts no program"),
        ("torchrun", "names no script"),
        ("torchrun --nproc_per_node", "its value is missing"),
        ("torchrun --nproc_per_node x train.py", "not a number of at least 1"),
        ("torchrun --nproc_per_node 0 train.py", "not a number of at least 1"),
        ("torchrun ''", "empty script"),
        ("python -m", "the module is missing"),
        ("torchrun --nnodes $SLURM_NNODES train.py", "only a shell in the job could tell its value"),
        ("srun -N 4 torchrun train.py", "torchrun is started on 4 nodes, and its own options say 1"),
        ("srun --nodes=2-4 python train.py", "--nodes 2-4 is not a number of at least 1"),
        ("srun -n 8 python train.py", "leaves the number of nodes to Slurm"),
        ("srun --export=NONE python train.py", "srun's --export NONE is not converted"),
        ("python train.py | tee log", "only a shell can run"),
        ("cd x && python train.py", "only a shell can run"),
        ("python a.py\npython b.py", "a line break"),
        ("python a.py `x`", "only a shell"),
        ("'a", "no closing quotation"),
        ("sbatch job.sh", "lines that start with sbatch"),
        ("mpirun -np 4 python a.py", "lines that start with mpirun"),
        ("python \0", "NUL"),
    ],
)
def test_what_can_not_be_read(command: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job_from_command(command)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=4), WORDS)
def test_any_argument_survives(folder: Path, args: list[str], value: str) -> None:
    line = f"A={shlex.quote(value)} torchrun --nproc_per_node 2 train.py {shlex.join(args)}"
    # a backslash before a line break inside quotes is a continuation, as pasted text has it
    assume("\\\n" not in line)
    assume("\\\r\n" not in line)
    job, _ = loaded(job_from_command(line), folder)
    assert job.args == tuple(args)
    assert job.env == {"A": value}


VOCABULARY = (
    "torchrun srun python accelerate launch deepspeed -m -N -N4 --nnodes 2 --nproc_per_node 1:2 train.py -- - --mem 4G "
    "-t 1-0 x=1 A=b --gres gpu:2 --no_python $X --container-image i -c 0 -p '' --mem= --job-name=!! env uv run '-' pkg "
    "--mixed_precision fp16 --exclusive --time=99999999999 --gpus-per-node a:1 --exclude n[1-2] --mem=1.5T --foo-bar"
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(sorted(VOCABULARY.split())), max_size=9))
def test_any_line_is_read_or_refused(folder: Path, words: list[str]) -> None:
    try:
        draft = job_from_command(" ".join(words))
    except UsageError:
        return
    if draft.profile is not None:
        loaded_profile(draft.profile, folder)
    try:
        loaded_job(draft.job, folder)
    except UsageError as error:
        if "code folder" not in str(error):  # a word that is no file of the folder
            raise


@given(WORDS)
def test_any_text_is_one_value(text: str) -> None:
    from orchestrator.specs.documents.yaml_source import parse, plain

    node = parse(f"{{a: [{text_value(text)}, {text_value(text)}], b: {text_value(text)}}}", "f")
    assert node is not None
    assert plain(node) == {"a": [text, text], "b": text}


def test_hosts(folder: Path) -> None:
    profile = loaded_profile(profile_from_hosts(["user@n[1-3]", "b:2222"]), folder)
    assert isinstance(profile, SshProfile)
    assert [h.host for h in profile.hosts] == ["n1", "n2", "n3", "b"]
    for broken in (["n[1-"], [], ["a@"], ["a", "a"], [""], ["a\nb"]):
        with pytest.raises(UsageError, match="the hosts can't be read"):
            profile_from_hosts(broken)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "cpu|up|1:00|9|0/9|4|1|(null)|a\ngpu*|up|2-00:00:00|12|0/12|64+|512000+|gpu:1080:8(S:0-1)|b\n",
            ("gpu", 2, 8, 8, 3600),
        ),
        ("cpu|up|30:00|1|0/1|4+|1|(null)|a\n", ("cpu", 1, 4, None, 1800)),
        ("p*|up|infinite|3|0/3|2|1|gpu:4,mps:100|a\n", ("p", 2, 4, 4, 3600)),
        ("p*|up|10|3|0/3|2|1|gpu:a:2,gpu:2g.10gb:3|a\n", ("p", 2, 5, 5, 600)),
        ("true*|up|n/a|3|0/3|2|1|(null)|a", ("true", 2, 2, None, 3600)),
    ],
)
def test_sinfo(text: str, expected: tuple[object, ...], folder: Path) -> None:
    made = loaded_profile(profile_from_sinfo(text), folder)
    assert isinstance(made, SlurmProfile)
    assert (made.partition, made.nodes, made.nproc_per_node, made.gpus_per_node, made.time) == expected


def test_sinfo_that_is_none() -> None:
    for text in ("", "sinfo: command not found", "a|b|c|d|e|f|g|h|i", "#x|up|1|1|0/1|1|1|(null)|a"):
        with pytest.raises(UsageError, match="names no partition"):
            profile_from_sinfo(text)


def test_times_of_slurm() -> None:
    times = {
        "30": 1800,
        "10:30": 630,
        "1:00:00": 3600,
        "2-00:00:00": 172_800,
        "1-12": 129_600,
        "UNLIMITED": None,
        "1-": None,
    }
    assert {text: seconds_in(text) for text in times} == times
