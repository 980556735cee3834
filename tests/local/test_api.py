"""Real runs from Python: submitted, followed, waited for, cancelled; functions on ranks; the page and the notebook."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import orchestrator as api
from orchestrator import errors
from orchestrator.operations.submission import launch
from tests.local.conftest import REPO, Orch
from tests.patience import PATIENCE

HOLD = "import time\nprint('holding', flush=True)\ntime.sleep(600)\n"
JOB = "script: main.py\nlauncher: exec\n"  # programs of their own: they need no torch, which takes long to import
EXEC = {"job.launcher": "exec"}
Project = Callable[..., Path]


@pytest.fixture(autouse=True)
def _same_home(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to where the fixture ends what a test has left."""
    monkeypatch.setenv("ORCH_HOME", str(orch.home))


def test_a_run_is_followed_waited_for_and_read(project: Project) -> None:
    program = "import os, json\nfor step in range(3): print('step', step, os.environ['WHO'])\n" \
        "json.dump({'ok': True}, open(os.environ['ORCH_RESULT_FILE'], 'w'))\n"  # fmt: skip
    folder = project(main_py=program, job_yaml=JOB)
    run = api.submit(folder / "job.yaml", "local", nproc_per_node=1, env={"WHO": "me"}, name="followed")
    assert list(run.logs()) == [f"step {step} me" for step in range(3)]
    assert run.wait(PATIENCE) is run
    assert run.result() == {"ok": True}
    assert run.id.startswith("followed-")
    assert run.status().state == "succeeded"
    after = api.submit(folder / "job.yaml", "local", env={"WHO": "it"}, after=run)
    assert after.result() == {"ok": True}


def test_a_job_may_be_a_mapping(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(say_py="import sys; print(*sys.argv[1:])"))
    run = api.submit({"script": Path("say.py"), "args": ["--lr", 0.1], "launcher": "exec"}, "local")
    assert list(run.logs()) == ["--lr 0.1"]
    with pytest.raises(errors.SpecError, match=r"job: script: there is no 'sai.py'"):
        api.submit({"script": "sai.py"}, "local")
    with pytest.raises(errors.UsageError, match=r"job is a dict, which a job or a profile can't hold"):
        api.submit({"script": object()}, "local")


def test_waiting_has_a_limit_and_cancelling_leaves_nothing(project: Project) -> None:
    folder = project(main_py=HOLD, job_yaml=JOB)
    run = api.submit(folder / "job.yaml", "local", nproc_per_node=1)
    lines = run.logs()
    assert next(lines) == "holding"
    lines.close()  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError, match=f"run {run.id} is running after 0.1 s"):
        run.wait(0.1)
    with pytest.raises(api.WaitTimeoutError):
        run.result(timeout=0)
    assert run.verdict is None
    assert [proof.survivors for proof in run.cancel(now=True)] == [()]
    assert run.verdict is not None
    with pytest.raises(api.RunFailedError, match="was cancelled"):
        run.result()


def test_a_run_inside_of_a_running_loop(project: Project) -> None:
    folder = project(main_py="print('hello')\n", job_yaml=JOB)

    async def both() -> list[str]:
        direct = api.submit(folder / "job.yaml", "local", nproc_per_node=1).wait(PATIENCE)
        beside = await asyncio.to_thread(api.submit, folder / "job.yaml", "local", nproc_per_node=1)
        await asyncio.to_thread(beside.wait, 60)
        launched = await asyncio.to_thread(api.launch, lambda: "here", nproc_per_node=1, sets=EXEC)
        return [direct.status().state, beside.status().state, *launched]

    assert asyncio.run(both()) == ["succeeded", "succeeded", "here"]


# -- functions


def double(number: int) -> int:
    return 2 * number


def who(number: int) -> dict[str, Any]:
    print("called with", number)
    return {"rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"]), "double": double(number)}


def tensors() -> tuple[Any, str]:
    import torch

    return torch.full((2,), float(os.environ["RANK"]), requires_grad=True), "text"


def unlike() -> Any:
    import fractions

    return {"odd": [fractions.Fraction(1, 3)]}


def raises_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("no such shard")
    time.sleep(600)


def hold() -> None:
    print("holding", flush=True)
    time.sleep(600)


def test_a_function_is_called_on_every_rank_of_every_node() -> None:
    """The ranks are programs of their own, as on GPUs, where ranks are not forked."""
    lines: list[str] = []
    results = api.launch(who, 4, nodes=2, nproc_per_node=2, sets=EXEC, log=lines.append)
    assert results == [{"rank": rank, "world": 4, "double": 8} for rank in range(4)]
    assert lines == ["called with 4"]
    assert api.find("last").id.startswith("who-")


def test_tensors_come_home_from_forked_ranks() -> None:
    results = api.launch(tensors, nproc_per_node=2)
    assert [(tensor.tolist(), text) for tensor, text in results] == [([0.0, 0.0], "text"), ([1.0, 1.0], "text")]


def test_a_result_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(api.RunFailedError, match=r"returned a fractions.Fraction at result\['odd'\]\[0\]") as caught:
        api.launch(unlike, nproc_per_node=1, sets=EXEC)
    assert (caught.value.verdict.code, caught.value.verdict.cause) == (93, "no_retry")


def test_a_ranks_exception_comes_with_its_traceback() -> None:
    with pytest.raises(api.RunFailedError, match=r"rank 1 on node 0 .*ValueError: no such shard") as caught:
        api.launch(raises_on_rank_1, nproc_per_node=2, sets=EXEC)
    error = caught.value.verdict.error
    assert error is not None
    assert "in raises_on_rank_1" in error["traceback"]
    assert error["traceback"].strip() in str(caught.value)


def test_nodes_with_another_python_refuse_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "python_version", lambda: "3.8")
    with pytest.raises(
        api.RunFailedError, match=r"the function was sent by Python 3\.8, and .* here is Python 3\."
    ) as no:
        api.launch(double, 1, nproc_per_node=1, sets=EXEC)
    assert no.value.verdict.code == 93


def test_what_can_not_be_pickled_starts_nothing() -> None:
    with pytest.raises(errors.UsageError, match="double can't be sent: TypeError: cannot pickle"):
        api.launch(double, threading.Lock())
    assert api.list_runs() == []


def test_ctrl_c_cancels_what_was_launched(orch: Orch) -> None:
    program = "import time, orchestrator\n\ndef hold():\n    print('holding', flush=True)\n    time.sleep(600)\n\n" \
        "orchestrator.launch(hold, nproc_per_node=1, sets={'job.launcher': 'exec'}, " \
        "log=lambda line: print(line, flush=True))\n"  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=orch.environment(), cwd=REPO,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert said.endswith("KeyboardInterrupt\n")
    assert api.find("last").status().state == "cancelled"


# -- the documentation


@pytest.mark.full(
    "tests/local/test_api.py::test_a_run_is_followed_waited_for_and_read",
    "tests/local/test_api.py::test_the_notebook_runs_from_top_to_bottom",
)
@pytest.mark.timeout(300)
def test_the_examples_of_the_page(orch: Orch, tmp_path: Path) -> None:
    text, folder = (REPO / "docs" / "api.md").read_text(), tmp_path / "page"
    folder.mkdir()
    for name, content in re.findall(r"^```(?:yaml|py)\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(content)
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    (folder / "page.py").write_text("\n\n".join(blocks))
    environment = orch.environment(PYTHONPATH=str(REPO))
    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "the sum is 40.0" in done.stdout.splitlines()
    assert "did you mean 'args'?" in done.stdout


@pytest.mark.timeout(300)
def test_the_notebook_runs_from_top_to_bottom(orch: Orch, tmp_path: Path) -> None:
    """By a program of its own: what Jupyter warns of is not ours."""
    program = (
        "import sys, nbformat; from nbclient import NotebookClient; "
        "book = nbformat.read(sys.argv[1], 4); "
        f"NotebookClient(book, timeout={PATIENCE:.0f}).execute(); nbformat.write(book, sys.argv[2])"
    )
    argv = [sys.executable, "-c", program, str(REPO / "docs/notebooks/launch.ipynb"), "out.ipynb"]
    environment = orch.environment(PYTHONPATH=str(REPO), IPYTHONDIR=str(tmp_path), JUPYTER_RUNTIME_DIR=str(tmp_path))
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    out = (tmp_path / "out.ipynb").read_text()
    assert "2 ranks add up to 285" in out
    assert "FileNotFoundError" in out
