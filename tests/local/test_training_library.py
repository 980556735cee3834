"""Users' own scripts with `orchestrator.training.run`, and checkpoints whose writer is killed."""

import json
import signal
import subprocess
import sys

from orchestrator.training.checkpoint import format as checkpoints
from tests.local.programs.ranks import PROGRAMS, REPOSITORY, run, started, wait_for
from tests.patience import PATIENCE


def test_a_plain_ddp_script_gains_resume_beats_and_a_clean_stop(tmp_path):
    script = str(PROGRAMS / "plain_ddp.py")
    with started(2, [script, "1000000"], tmp_path) as ranks:
        wait_for(tmp_path / "beat.0", '"phase": "train"', ranks)
        ranks.processes[0].send_signal(signal.SIGTERM)
        ended = ranks.wait()
    assert [rank.code for rank in ended] == [95, 95], ended
    found = checkpoints.newest(tmp_path / "checkpoints")
    assert found is not None
    values = json.loads((tmp_path / "beat.1").read_text())
    assert (values["step"], values["total"], values["phase"]) == (found.step, 1_000_000, "done")

    ended = run(2, [script, str(found.step + 50)], tmp_path)
    assert [rank.code for rank in ended] == [0, 0], ended
    assert f"began at {found.step}, loss " in ended[0].out


def test_the_diff_in_the_docs_is_the_script_that_is_tested():
    script = (PROGRAMS / "plain_ddp.py").read_text().splitlines()
    added = [line.removesuffix("# +").strip() for line in script if line.endswith("# +")]
    page = (REPOSITORY / "docs" / "training.md").read_text().splitlines()
    shown = [line.removeprefix("+").strip() for line in page if line.startswith("+")]
    assert len(added) == 3
    assert shown == added


def test_no_kill_leaves_a_torn_checkpoint(tmp_path):
    [ended] = run(1, [str(PROGRAMS / "killed_saves.py"), str(tmp_path / "ckpt"), "25"], tmp_path)
    assert ended.code == 0, ended
    trials = [json.loads(line) for line in ended.out.splitlines()]
    assert len(trials) >= 25
    assert [trial["problems"] for trial in trials if any(trial["problems"])] == []
    newest = [max(trial["steps"], default=0) for trial in trials]
    assert newest == sorted(newest)
    assert newest[-1] > 25


def test_the_library_does_nothing_unasked(tmp_path):
    code = (
        "from orchestrator.training import run\n"
        "assert run.is_main() and run.latest() is None and run.load_latest() is None\n"
        "with run.phase('eval'): run.step(3, 10, loss=0.5)\n"
        "run.metric(3, loss=0.5)\nrun.result(loss=0.5)\n"
        "assert not run.stop_requested()\n"
    )
    with started(1, ["-c", code], tmp_path, {"ORCH_BEAT_FILE": "", "ORCH_RESULT_FILE": ""}) as ranks:
        [ended] = ranks.wait()
    assert ended.code == 0, ended
    assert sorted(path.name for path in tmp_path.iterdir()) == ["err.0", "out.0"]


def test_steps_of_earlier_starts_do_not_count_for_the_speed(tmp_path):
    code = (
        "from orchestrator.training import run\n"
        "run.begin(1000, 2000)\nrun.step(1001, 2000)\nrun.step(1002, 2000)\n"
        "assert run._session().meter._samples == 2\n"
    )
    [ended] = run(1, ["-c", code], tmp_path)
    assert ended.code == 0, ended


def test_importing_the_package_does_not_import_torch():
    code = (
        "import sys, orchestrator.training, orchestrator.training.distributed.stop; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=PATIENCE)
