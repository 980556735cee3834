"""Mistakes that people make at first, and what they are told: what is wrong, where, and what to type instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.result import Result

Orch = Callable[..., Result]


@pytest.fixture
def orch(in_process: Orch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Orch:
    """The command line within this process, in a folder with a script and its job."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    Path("train.yaml").write_text("script: train.py\n")
    Path("run.sh").write_text("torchrun --nproc_per_node 2 train.py\n")
    return in_process


def refused(orch: Orch, *argv: str) -> str:
    done = orch(*argv)
    assert done.code == 2, done.err
    return done.err


def test_options_of_init_count_after_its_name_too(orch: Orch) -> None:
    assert orch("init", "lab", "--host", "n[1-2]", "--force").code == 0
    assert 'hosts: ["n[1-2]"]' in Path("cluster_profiles/lab.yaml").read_text()
    assert not Path("lab.yaml").exists()
    assert orch("init", "job", "torchrun", "train.py", "--host", "n1").code == 0
    assert "args: [--host, n1]" in Path("job.yaml").read_text()
    assert orch("init", "other", "--", "torchrun", "train.py").code == 0
    assert "init has no option --hots" in refused(orch, "init", "lab2", "--hots", "n1")
    assert "begins with --host, which is not a program" in refused(orch, "init", "lab3", "--", "--host", "n1")


def test_what_init_writes_is_submitted_as_it_says(orch: Orch) -> None:
    said = orch("init", "job", "torchrun", "--nproc_per_node", "2", "train.py").err.splitlines()[-1]
    assert said == "next: orch submit job.yaml -p job -f"
    words = said.removeprefix("next: orch ").split()
    assert orch(*(word for word in words if word != "-f"), "--dry-run").code == 0


def test_a_launcher_is_not_started_by_each_rank_of_another(orch: Orch) -> None:
    said = refused(orch, "init", "job", "bash", "run.sh", "with", "arguments")
    assert "the command starts torchrun (run.sh:1)" in said
    assert "orch init job torchrun --nproc_per_node 2 train.py" in said
    assert not Path("job.yaml").exists()
    assert orch("init", "read", "bash", "run.sh").code == 0
    assert "script: train.py" in Path("read.yaml").read_text()
    Path("job.yaml").write_text("command: [bash, run.sh]\n")
    submit = ("submit", "job.yaml", "-p", "local", "--dry-run", "--nproc-per-node")
    assert "job.yaml:1:10: command: starts torchrun (run.sh:1) on every rank" in refused(orch, *submit, "2")
    assert "starts torchrun" in refused(orch, *submit, "auto")
    assert "starts torchrun (run.sh:1)" in refused(orch, "run", "-p", "local", "--dry-run", "--", "bash", "run.sh")
    assert orch(*submit, "1").code == 0


def test_a_script_that_submits_itself_is_not_started_on_each_rank(orch: Orch) -> None:
    Path("sub.py").write_text("import submitit, train\nsubmitit.AutoExecutor('x').submit(train.main)\n")
    says = "sub.py submits its training through submitit (sub.py:2), and each rank of orch would submit it again"
    for line in (("init", "job", "python", "sub.py"), ("run", "-p", "local", "--dry-run", "--", "python", "sub.py")):
        said = refused(orch, *line)
        assert says in said
        assert "launch train.py, which this script imports: orch run -- torchrun train.py" in said
    Path("job.yaml").write_text("command: [python, -u, sub.py]\n")
    assert f"job.yaml:1:10: command: {says}" in refused(orch, "submit", "job.yaml", "-p", "local", "--dry-run")
    Path("job.yaml").write_text("module: sub\n")
    assert f"job.yaml:1:9: module: {says}" in refused(orch, "submit", "job.yaml", "-p", "local", "--dry-run")
    assert orch("submit", "job.yaml", "-p", "local", "--dry-run", "--nproc-per-node", "1").code == 0


def test_what_sinfo_says_is_said(orch: Orch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sinfo = tmp_path / "bin" / "sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text("#!/bin/sh\necho 'sinfo: fatal: Could not establish a configuration source' >&2\nexit 1\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sinfo.parent}:/usr/bin:/bin")
    done = orch("init", "--slurm", "big")
    assert done.code == 1
    assert done.err.splitlines()[0] == "orch: sinfo failed: fatal: Could not establish a configuration source"


def test_words_of_other_programs_are_understood_or_answered(orch: Orch) -> None:
    for word in ("ls", "ps"):
        assert (orch(word).code, orch(word).out) == (0, orch("status").out)
    assert "no run is called 'x'" in orch("describe", "x").err
    assert "orch gc" in refused(orch, "clean")
    assert "orch rm RUN" in refused(orch, "clean")
    assert "there is no command 'nonsense'" in refused(orch, "nonsense")


def test_a_profile_without_p_is_recognized(orch: Orch) -> None:
    said = refused(orch, "submit", "train.yaml", "local")
    assert "given without -p\n  orch submit train.yaml -p local" in said
    assert orch("submit", "train.yaml", "-p", "local", "--dry-run").code == 0
    said = refused(orch, "plan", "train.yaml", "lr", "0.1")
    assert "orch plan train.yaml -- lr 0.1" in said
    assert orch("plan", "train.yaml", "-p", "local", "--", "lr", "0.1").code == 0


@pytest.mark.parametrize(
    ("job", "profile", "options", "says"),
    [
        ("script: train.py --epochs 1", "", "", "put the arguments into args: [--epochs, 1]"),
        ("", "gpus: 4", "", "'gpus' is not a field; did you mean nproc_per_node"),
        ("", "kind: slurm\ngpus: 4", "", "'gpus' is not a field; did you mean gpus_per_node"),
        ("training: {task: task.py, learning_rate: 1}", "", "", "job.yaml:1:27: 'training.learning_rate' is not a "
         "field; did you mean 'lr'?"),
        ("training: {task: task.py}", "", "--set learning_rate=1", "did you mean --set lr=...?"),
        ("training: {task: task.py}", "", "--set learning-rate=1", "did you mean --set lr=...?"),
        ("training: {task: task.py}", "", "--set job.training.options.hiden=1", "reads no option 'hiden'; did you mean "
         "hidden?"),
        ("training: {task: task.py}", "", "--sweep learning_rate=1,2", "--sweep, learning_rate=1: "
         "training.options.learning_rate: the task task.py reads no option 'learning_rate'; "
         "did you mean job.training.lr?"),
        ("training: {task: task.py}", "", "--sweep batch=96", "did you mean job.training.global_batch?"),
        ("", "", "--set lr=0.1", "orch submit JOB -- --lr 0.1"),
        ("", "", "--set args.lr=0.1", "orch submit JOB -- --lr 0.1"),
        ("", "", "--sweep args.lr=0.1,0.2", "did you mean --sweep --lr=...?"),
        ("", "", "--sweep lr=0.1,0.2", "did you mean --sweep --lr=..."),
    ],
)  # fmt: skip
def test_what_is_nearly_right_is_recognized(orch: Orch, job: str, profile: str, options: str, says: str) -> None:
    Path("task.py").write_text("def model(options):\n    return options.extra.get('hidden')\n")
    Path("job.yaml").write_text((job or "script: train.py") + "\n")
    Path("p.yaml").write_text((profile if "kind" in profile else f"kind: local\n{profile}") + "\n")
    assert says in refused(orch, "submit", "job.yaml", "-p", "./p.yaml", "--dry-run", *options.split())


def test_a_time_without_a_unit_is_answered_with_what_it_means(orch: Orch) -> None:
    Path("p.yaml").write_text("kind: slurm\ntime: 60\n")
    submit = ("submit", "train.yaml", "-p", "./p.yaml", "--dry-run")
    assert "note: p.yaml:2:7: `time: 60` means 60 seconds; write 60m for minutes" in orch(*submit).err
    assert "--set profile.time=90: `time: 90` means 90 seconds" in orch(*submit, "--set", "profile.time=90").err
    assert "`mem: 16` means 16 bytes, so orch requests 1 MiB; write 16G" in orch(*submit, "--set", "profile.mem=16").err
    assert "bytes" not in orch(*submit, "--set", "profile.mem=16G").err
    assert "bytes" not in orch(*submit, "--set", "profile.mem=2000000").err
    for time in ("60m", "60s", "3600", "1:00:00"):
        assert "seconds" not in orch(*submit, "--set", f"profile.time={time}").err


@pytest.mark.parametrize("hint", ["--sweep --lr=1,2", "--set job.checkpoint.keep=2", "-- --lr 0.1"])
def test_and_what_is_suggested_is_taken(orch: Orch, hint: str) -> None:
    assert orch("submit", "train.yaml", "-p", "local", "--dry-run", *hint.split()).code == 0
