"""A job's lock becomes the environment of its ranks, on this machine; wheels are made on the spot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.environments.uv import find_uv
from orchestrator.runs.store import RunDir
from tests import wheels
from tests.testbed.machine import wait_until

from .conftest import Orch


@pytest.fixture
def orch(orch: Orch, tmp_path: Path) -> Orch:
    """The command line, in a folder where a test may write."""
    return replace(orch.with_torch, cwd=tmp_path)


SAYS = "import alpha, sys\nprint(alpha.VERSION, sys.prefix)\n"


def ran(orch: Orch, *args: str, **extra: str) -> tuple[RunDir, str]:
    """The run, once it has succeeded, and what rank 0 has said."""
    run = orch.submit(*args, "--profile", "local", **extra)
    assert orch("wait", run.run_id).code == 0, orch("why", run.run_id).out
    return run, orch("logs", run.run_id).out


def made(orch: Orch, run: RunDir) -> bool:
    (event,) = orch.events(run, "environment")
    return bool(event["made"])


def folder_of(orch: Orch, run: RunDir) -> Path:
    (event,) = orch.events(run, "environment")
    return Path(event["folder"])


def test_a_requirements_file_is_installed_once_and_the_ranks_run_in_it(orch: Orch) -> None:
    lock = wheels.requirements(wheels.wheel(orch.cwd / "wheels", "alpha", "1.5"))
    program = "import alpha, os, shutil, sys\nprint(alpha.VERSION, sys.prefix)\nprint(shutil.which('python'))\n"
    job = wheels.job(orch.cwd / "job", "requirements.txt", lock, program)
    run, said = ran(orch, str(job))
    folder = folder_of(orch, run)
    assert said.splitlines() == [f"1.5 {folder}", f"{folder}/bin/python"]
    assert made(orch, run)
    assert orch("replay", run.run_id, "--rank", "0").out == said
    assert orch("shell", run.run_id, "--", "python", "-c", "import sys; print(sys.prefix)").out == f"{folder}\n"
    again, _ = ran(orch, str(job))
    assert not made(orch, again)
    assert folder_of(orch, again) == folder
    (orch.cwd / "job" / "requirements.txt").unlink()  # the record has it
    shutil.rmtree(orch.home / "cache" / "env")
    repeated, said = ran(orch, "--from", run.run_id)
    assert said.startswith("1.5 ")
    assert made(orch, repeated)


@pytest.fixture
def project(orch: Orch) -> Iterator[Path]:
    """A project with a uv.lock, from an index on loopback; its folder."""
    folder = orch.cwd / "project"
    folder.mkdir()
    files = [
        wheels.wheel(orch.cwd / "wheels", "alpha", "2.0", requires=("beta",)),
        wheels.wheel(orch.cwd / "wheels", "beta", "1.1"),
        wheels.wheel(orch.cwd / "wheels", "gamma", "3.0"),
        wheels.wheel(orch.cwd / "wheels", "onlywin", tag=wheels.FOR_WINDOWS),
    ]
    with wheels.index(orch.cwd / "index", *files) as url:
        (folder / "pyproject.toml").write_text(f"""
[project]
name = "mine"
version = "0.1"
requires-python = ">=3.10"
dependencies = ["alpha", "onlywin; sys_platform == 'win32'"]
[project.optional-dependencies]
more = ["gamma"]
[dependency-groups]
dev = ["gamma"]
[[tool.uv.index]]
url = "{url}"
default = true
""")
        subprocess.run([find_uv(), "lock", "--quiet", "--no-cache"], cwd=folder, check=True)
        yield folder


def test_a_uv_lock_gives_its_packages_of_this_platform_and_the_extras_that_were_asked_for(
    orch: Orch, project: Path
) -> None:
    program = """
import importlib.util, alpha, beta
found = [importlib.util.find_spec(name) is not None for name in ("gamma", "onlywin", "mine")]
print(alpha.VERSION, beta.VERSION, found)
"""
    job = wheels.job(project, "uv.lock", (project / "uv.lock").read_text(), program)
    assert ran(orch, str(job))[1] == "2.0 1.1 [False, False, False]\n"
    assert ran(orch, str(job), "--set", "job.environment.extras=[more]")[1] == "2.0 1.1 [True, False, False]\n"


def test_a_pylock_is_installed_and_its_addresses_are_needed_only_once(orch: Orch, project: Path) -> None:
    export = [find_uv(), "export", "--frozen", "--format", "pylock.toml", "--no-emit-project", "--quiet"]
    lock = subprocess.run(export, cwd=project, check=True, capture_output=True, text=True).stdout
    job = wheels.job(orch.cwd / "job", "pylock.lab.toml", lock, "import alpha, gamma\nprint(gamma.VERSION)\n")
    assert ran(orch, str(job))[1] == "3.0\n"
    shutil.rmtree(orch.cwd / "index")
    shutil.rmtree(orch.home / "cache" / "env")
    assert ran(orch, str(job))[1] == "3.0\n"


def test_a_source_distribution_is_built_once_and_recorded_by_the_hash_of_its_wheel(orch: Orch) -> None:
    counter = orch.cwd / "built"
    source = wheels.sdist(orch.cwd / "wheels", "alpha", "4.0", before=f"open({str(counter)!r}, 'a').write('x')")
    job = wheels.job(orch.cwd / "job", "requirements.txt", wheels.requirements(source), SAYS)
    run, said = ran(orch, str(job))
    assert said.startswith("4.0 ")
    ((choice,),) = (run.read("packages.json") or {}).values()
    assert choice["sha256"] not in ("", wheels.sha256(source))
    assert (orch.home / "cache" / "wheels" / choice["sha256"]).exists()
    shutil.rmtree(orch.home / "cache" / "env")
    shutil.rmtree(orch.home / "cache" / "chosen")
    ran(orch, str(job))
    assert counter.read_text() == "x"
    shutil.rmtree(orch.home / "cache")
    ran(orch, str(job))
    assert counter.read_text() == "xx"
    shutil.rmtree(orch.home / "cache")
    assert "which was built on this machine for this run, has been removed" in orch("submit", "--from", run.run_id).err


def test_a_build_that_fails_ends_the_run_with_its_last_lines(orch: Orch) -> None:
    source = wheels.sdist(orch.cwd / "wheels", "alpha", before="raise SystemExit('no compiler in this house')")
    job = wheels.job(orch.cwd / "job", "requirements.txt", wheels.requirements(source), SAYS)
    done = orch("submit", str(job), "--profile", "local")
    assert done.code == 1
    assert "alpha 1.0 can't be built from alpha-1.0.tar.gz" in done.err
    assert "no compiler in this house" in done.err


LOCKS = {
    "nothing has this version": ("alpha==9\n", 1, "does not resolve"),
    "two versions of one": ("alpha==1.0\nalpha==2.0\n", 1, "does not resolve"),
    "no single version": (
        "alpha>=1\n",
        2,
        ":1: 'alpha>=1' does not pin one version (name==1.2.3), so the file is not a lock",
    ),
    "another file": ("# all\n-r more.txt\n", 2, ":2: '-r more.txt' refers to another file or folder"),
    "a folder": ("./alpha\n", 2, ":1: './alpha' is not a requirement that can be locked"),
    "another hash": (
        f"alpha==1.0 --hash=sha256:{'0' * 64}\n",
        1,
        "alpha 1.0: none of its files has a hash that is in the lock",
    ),
    "only for Windows": (
        "win==1.0\n",
        1,
        "win 1.0 has no wheel for this Python and platform, only win-1.0-cp311-cp311-win_amd64.whl",
    ),
}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_that_can_not_be_installed_is_refused_with_the_package(orch: Orch, name: str) -> None:
    text, code, words = LOCKS[name]
    folder = orch.cwd / "wheels"
    wheels.wheel(folder, "alpha")
    wheels.wheel(folder, "win", tag=wheels.FOR_WINDOWS)
    links = "" if code == 2 else f"--no-index\n--find-links {folder}\n"
    job = wheels.job(orch.cwd / "job", "requirements.txt", links + text, SAYS)
    done = orch("submit", str(job), "--profile", "local")
    assert (done.code, words in done.err) == (code, True), done.err
    assert not list(orch.home.glob("runs/*/nodes/*/agent.json"))


def test_an_edited_file_shows_up_in_no_other_environment_and_not_in_the_next_run(orch: Orch) -> None:
    alpha, beta = (wheels.wheel(orch.cwd / "wheels", name) for name in ("alpha", "beta"))
    one = wheels.job(orch.cwd / "one", "requirements.txt", wheels.requirements(alpha), SAYS)
    other = wheels.job(orch.cwd / "other", "requirements.txt", wheels.requirements(alpha, beta), SAYS)
    run, _ = ran(orch, str(one))
    (module,) = folder_of(orch, run).glob("lib/*/site-packages/alpha/__init__.py")
    assert module.stat().st_nlink == 1  # no other file is changed with it
    times = module.stat().st_mtime_ns
    module.write_text("VERSION = 'bad'\n")  # as long as it was
    os.utime(module, ns=(times, times))
    assert ran(orch, str(other))[1].startswith("1.0 ")
    again, said = ran(orch, str(one))
    assert said.startswith("1.0 ")
    assert made(orch, again)


def test_two_runs_at_once_install_it_once_and_half_a_copy_is_made_whole(orch: Orch) -> None:
    alpha = wheels.wheel(orch.cwd / "wheels", "alpha", size=10_000_000)
    job = wheels.job(orch.cwd / "job", "requirements.txt", wheels.requirements(alpha), SAYS)
    kept = orch.home / "cache" / "wheels" / wheels.sha256(alpha)
    kept.parent.mkdir(parents=True, mode=0o700)
    kept.write_bytes(alpha.read_bytes()[:5_000_000])
    argv = orch.argv("submit", str(job), "--profile", "local", "--json")
    both = [subprocess.Popen(argv, cwd=orch.cwd, env=orch.environment(), stdout=subprocess.PIPE) for _ in range(2)]
    runs = [orch.run(json.loads(each.communicate()[0])["run_id"]) for each in both]
    for run in runs:
        assert orch("wait", run.run_id).code == 0
    assert sorted(made(orch, run) for run in runs) == [False, True]
    assert wheels.sha256(kept) == wheels.sha256(alpha)


def test_packages_of_another_interpreter_stay_visible_and_are_not_installed_again(orch: Orch) -> None:
    alpha, beta = (wheels.wheel(orch.cwd / "wheels", name) for name in ("alpha", "beta"))
    system = orch.cwd / "system"
    subprocess.run([find_uv(), "venv", "--quiet", "--python", sys.executable, system], check=True)
    install = [find_uv(), "pip", "install", "--quiet", "--no-cache", "--python", system, alpha]
    subprocess.run(install, check=True)
    program = "import alpha, beta\nprint(alpha.__file__)\nprint(beta.__file__)\n"
    job = wheels.job(
        orch.cwd / "job", "requirements.txt", wheels.requirements(alpha, beta), program,
        system_packages=str(system / "bin" / "python"),
    )  # fmt: skip
    run, said = ran(orch, str(job))
    first, second = said.splitlines()
    assert Path(first).is_relative_to(system)
    assert Path(second).is_relative_to(folder_of(orch, run))


def test_a_python_that_is_not_here_is_refused_with_those_that_are(orch: Orch) -> None:
    lock = wheels.requirements(wheels.wheel(orch.cwd / "wheels", "alpha"))
    job = wheels.job(orch.cwd / "job", "requirements.txt", lock, SAYS, python="3.99")
    done = orch("submit", str(job), "--profile", "local")
    assert done.code == 1
    assert "the host has no Python 3.99; found: " in done.err
    assert ".".join(map(str, sys.version_info[:3])) in done.err


def test_a_container_is_an_environment_already(orch: Orch) -> None:
    lock = wheels.requirements(wheels.wheel(orch.cwd / "wheels", "alpha"))
    job = wheels.job(orch.cwd / "job", "requirements.txt", lock, SAYS)
    done = orch(
        "submit", str(job), "--profile", "local", "--set", "job.container.image=x", "--set=profile.runtime=docker"
    )
    assert (done.code, "whose image is its environment" in done.err) == (2, True), done.err


def test_gc_removes_what_no_run_has_used_for_long_and_keeps_what_one_runs_in(orch: Orch) -> None:
    alpha, beta = (wheels.wheel(orch.cwd / "wheels", name) for name in ("alpha", "beta"))
    hold = wheels.job(
        orch.cwd / "hold", "requirements.txt", wheels.requirements(alpha),
        "import alpha, time\nprint('holding', flush=True)\ntime.sleep(600)\n",
    )  # fmt: skip
    other = wheels.job(orch.cwd / "other", "requirements.txt", wheels.requirements(beta), "import beta\n")
    gone, _ = ran(orch, str(other))
    run = orch.submit(str(hold), "--profile", "local")
    wait_until(lambda: "holding" in orch("logs", run.run_id).out, "the rank")
    used, unused = folder_of(orch, run), folder_of(orch, gone)
    for path in (*orch.home.glob("cache/*/*"), *orch.home.glob("cache/env/*/*.json")):
        os.utime(path, (1, 1))
    assert str(unused) in orch("gc", "--dry-run").out
    assert unused.exists()
    assert orch("gc").code == 0
    assert (used.exists(), unused.exists()) == (True, False)
    assert (orch.home / "cache" / "wheels" / wheels.sha256(beta)).exists()  # a run that is known was given it
    assert orch("cancel", run.run_id, "--now").code == 0
    assert orch("rm", gone.run_id, run.run_id).code == 0
    assert orch("gc").code == 0
    assert list((orch.home / "cache" / "env").glob("*/")) == []
    assert not (orch.home / "cache" / "wheels" / wheels.sha256(beta)).exists()
