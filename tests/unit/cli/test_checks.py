"""Every check of a submit on this machine, and which of them a plan and a dry run make. The table of docs/job.md is
this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.result import Result

ROOT = Path(__file__).parents[3]
PLAN, DRY_RUN, SUBMIT = "`orch plan`", "`--dry-run`", "a submit"


class Check(NamedTuple):
    """A mistake in the job, in the profile, in the options, or in the folder."""

    by: tuple[str, ...]  # who finds it
    message: str
    job: str = ""
    profile: str = ""
    options: tuple[str, ...] = ()
    broken: Callable[[Path], object] = lambda _: None


ALL = (PLAN, DRY_RUN, SUBMIT)
BAD_PYTHON = "{folder}/bad/python"
CHECKS = {
    "the fields of job and profile, and their types": Check(ALL, "did you mean 'launcher'", job="lanucher: fork"),
    "the files that the job names": Check(ALL, "gone.py", job="script: gone.py"),
    "the code folder: [where it is](#a-job-file-is-code), and no credentials": Check(
        ALL, "whole home folder", job="code: {dir: '~'}"
    ),
    "the CPUs, GPUs and memory of this machine, if the run is here": Check(
        ALL, "this machine has", job="resources: {cpus: 100000}"
    ),
    "a launcher in the job's command": Check(ALL, "torchrun", job="command: [torchrun, train.py]"),
    "the values of secrets": Check(ALL, "SECRET_OF_THE_TEST", job="secrets: [SECRET_OF_THE_TEST]"),
    "the checkpoint to resume from": Check(ALL, "nobody", options=("--resume", "nobody")),
    "the lock of the environment": Check(ALL, "gone.lock", job="environment: {lock: gone.lock}"),
    "the run to wait for (`--after`)": Check((DRY_RUN, SUBMIT), "nobody", options=("--after", "nobody")),
    "the size of the code folder, and whether each file can be sent": Check(
        (DRY_RUN, SUBMIT), "more than the 1 B allowed", job="code: {max_size: 1}"
    ),
    "whether the interpreter starts, and which interpreter a script such as a shim of pyenv starts": Check(
        (SUBMIT,), "bad/python fails", profile=f"python: {BAD_PYTHON}"
    ),
    "whether others may write to the state folder": Check(
        (SUBMIT,), "may be written by others", broken=lambda folder: (folder / "state").chmod(0o777)
    ),
    "the machines: whether they can be reached, their Python, disks, free GPUs and folders": Check(
        (SUBMIT,), "127.0.0.1", profile="kind: ssh\nhosts: ['127.0.0.1:1']\nworkdir: ~/orch"
    ),
}  # fmt: skip
NOT_TRIED = {
    "whether the scheduler takes the job": "`--dry-run --check`, a submit",
    "whether torch and other modules are installed": "the nodes, when the run starts",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    for path in (tmp_path / "home", project, project / "bad", project / "state"):
        path.mkdir(mode=0o700)
    (project / "bad/python").write_text(f"#!/bin/sh\necho started >> {project}/started\nexit 3\n")
    (project / "bad/python").chmod(0o755)
    (project / "train.py").write_text("print('x')\n")
    monkeypatch.setenv("ORCH_HOME", str(project / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project)
    return project


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_is_made_by_those_whom_the_table_names(
    folder: Path, name: str, in_process: Callable[..., Result]
) -> None:
    check = CHECKS[name]
    job = check.job if check.job.startswith(("script", "command")) else f"script: train.py\n{check.job}"
    (folder / "job.yaml").write_text(f"{job}\n")
    profile = check.profile if check.profile.startswith("kind") else f"kind: local\nnproc_per_node: 2\n{check.profile}"
    (folder / "place.yaml").write_text(profile.replace("{folder}", str(folder)) + "\n")
    check.broken(folder)
    commands = {
        PLAN: ("plan", "job.yaml", "-p", "place.yaml"),
        DRY_RUN: ("submit", "job.yaml", "-p", "place.yaml", "--dry-run"),
        SUBMIT: ("submit", "job.yaml", "-p", "place.yaml"),
    }
    for who, command in commands.items():
        if who == PLAN and check.options[:1] == ("--after",):
            continue  # orch plan has no such option
        done = in_process(*command, *check.options)
        assert (done.code != 0) is (who in check.by), (who, done.out, done.err)
        assert done.code == 0 or check.message in done.err, (who, done.err)
        assert who == SUBMIT or not (folder / "started").exists(), who


def test_the_page_has_this_table() -> None:
    page = (ROOT / "docs" / "job.md").read_text().partition("### What is checked when\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", page, re.MULTILINE)[1:]
    assert rows == [*((name, ", ".join(check.by)) for name, check in CHECKS.items()), *NOT_TRIED.items()]
