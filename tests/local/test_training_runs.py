"""The shared entrypoint with real ranks: what is trained, reported, resumed, and how it stops."""

import json
import resource
import signal
from pathlib import Path

import pytest
import torch

from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.data.task import load_task
from orchestrator.training.options import parse
from orchestrator.training.progress.heartbeat import HEARTBEAT_BYTES
from tests.local.programs.ranks import JOBS, PROGRAMS, run, started, train, wait_for

SMALL = ("--global-batch", "12", "--option", "dropout=0.5", "--seed", "7")
DROPOUT = ("--global-batch", "90", "--option", "dropout=0.5", "--seed", "7")


def beat(folder: Path, rank: int) -> dict:
    return json.loads((folder / f"beat.{rank}").read_text())


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the step and the weights of the newest checkpoint of a run."""
    found = checkpoints.newest(folder / "checkpoints")
    assert found is not None
    return found.step, checkpoints.load(found.path)[0]["model"]


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A whole training of the digits on two ranks: the folder and how the ranks ended."""
    folder = tmp_path_factory.mktemp("digits")
    return folder, run(2, train("--epochs", "12", "--lr", "0.005", "--save-every", "40"), folder)


def test_two_ranks_learn_the_digits_and_say_so(digits):
    folder, ranks = digits
    assert [rank.code for rank in ranks] == [0, 0], ranks
    result = json.loads((folder / "result.json").read_text())
    assert result["accuracy"] > 0.9
    assert {key: result[key] for key in ("task", "data", "test_samples", "step", "epochs", "world_size")} == {
        "task": "digits",
        "data": "digits",
        "test_samples": 360,
        "step": 180,
        "epochs": 12,
        "world_size": 2,
    }
    lines = ranks[0].out.splitlines()
    assert lines[0].startswith("backend gloo on cpu (0 GPUs visible")
    assert lines[-1] == f"accuracy {100 * result['accuracy']:.2f} % on 360 test images (digits)"
    assert any(line.startswith("step 180/180  epoch 12  loss ") for line in lines)
    assert "\r" not in ranks[0].out
    assert ranks[1].out == ""


def test_metrics_and_beats_are_written(digits):
    folder, _ = digits
    lines = metrics(folder)
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, *range(10, 181, 10)]
    assert [line["step"] for line in lines if line["kind"] == "save"] == [40, 80, 120, 160, 180]
    assert [line["step"] for line in lines if line["kind"] == "eval"] == list(range(15, 181, 15))
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < losses[0] / 2
    for rank in (0, 1):
        assert (folder / f"beat.{rank}").stat().st_size == HEARTBEAT_BYTES
        assert (beat(folder, rank)["step"], beat(folder, rank)["phase"]) == (180, "done")


def test_all_ranks_are_in_save_while_rank_0_writes(tmp_path):
    arguments = train("--epochs", "1", "--save-every", "5")[2:]
    ranks = run(2, [str(PROGRAMS / "all_in_save.py"), *arguments], tmp_path)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert [line["step"] for line in metrics(tmp_path) if line["kind"] == "save"] == [5, 10, 15]


def test_three_checkpoints_are_kept(digits):
    found = checkpoints.listing(digits[0] / "checkpoints")
    assert [(each.step, each.problem) for each in found] == [(120, None), (160, None), (180, None)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Three ranks with dropout, 24 steps without a break: an epoch and a half."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert [rank.code for rank in run(3, train("--steps", "24", *DROPOUT), folder)] == [0, 0, 0]
    return folder


@pytest.mark.full(
    "tests/local/test_training_strategies.py::test_a_resumed_training_equals_an_unbroken_one",
    "tests/local/test_training_runs.py::test_a_stop_signal_to_one_rank_stops_all_at_one_step_and_another_world_goes_on",
)
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(unbroken, tmp_path):
    # Step 7 is within the first epoch (16 steps, the last of them uneven), step 24 within the second.
    assert [rank.code for rank in run(3, train("--steps", "7", *DROPOUT), tmp_path)] == [0, 0, 0]
    ranks = run(3, train("--steps", "24", *DROPOUT), tmp_path)
    assert [rank.code for rank in ranks] == [0, 0, 0], ranks
    assert "at step 7, epoch 0" in ranks[0].out
    (step, resumed), (_, whole) = weights(tmp_path), weights(unbroken)
    assert step == 24
    assert_equal(resumed, whole)


@pytest.mark.full("tests/local/test_training_strategies.py::test_every_way_evaluates_alike")
def test_an_evaluation_over_three_ranks_counts_each_sample_once(unbroken):
    task = load_task(JOBS / "digits.py")
    options = parse(["--task", "digits.py"])
    model = task.model(options).eval()
    model.load_state_dict(weights(unbroken)[1])
    images, targets = task.data(options).test
    correct = int((model(images).argmax(1) == targets).sum())
    result = json.loads((unbroken / "result.json").read_text())
    assert round(result["accuracy"] * 360, 6) == correct
    assert result["test_samples"] == 360


@pytest.mark.full("tests/local/test_training_strategies.py::test_three_ranks_of_ddp_give_the_weights_of_one_process")
def test_uneven_batches_give_the_gradient_of_a_single_process(tmp_path):
    # 7 samples in batches of 6: at the second step two of three ranks have none.
    arguments = train("--steps", "4", "--global-batch", "6", task=PROGRAMS / "uneven.py")
    assert [rank.code for rank in run(3, arguments, tmp_path / "three")] == [0, 0, 0]
    assert [rank.code for rank in run(1, arguments, tmp_path / "one")] == [0]
    (_, three), (_, one) = weights(tmp_path / "three"), weights(tmp_path / "one")
    for name, value in one.items():
        torch.testing.assert_close(three[name], value, rtol=1e-12, atol=1e-14)


def test_a_stop_signal_to_one_rank_stops_all_at_one_step_and_another_world_goes_on(tmp_path):
    endless = ("--epochs", "1000000", "--save-every", "1000000", "--eval-every", "1000000")
    with started(2, train(*endless, *SMALL, task=PROGRAMS / "small.py"), tmp_path) as ranks:
        wait_for(tmp_path / "metrics.jsonl", '"step": 100,', ranks)
        ranks.processes[1].send_signal(signal.SIGUSR2)
        ended = ranks.wait()
    assert [rank.code for rank in ended] == [95, 95], ended
    step = weights(tmp_path)[0]
    assert [beat(tmp_path, rank)["step"] for rank in (0, 1)] == [step, step]
    assert f"stopped by a signal at step {step}" in ended[0].out

    [alone] = run(1, train("--steps", str(step + 20), *SMALL, task=PROGRAMS / "small.py"), tmp_path)
    assert alone.code == 0, alone
    assert f"resumed from checkpoints/step_{step:08d} at step {step}" in alone.out
    assert json.loads((tmp_path / "result.json").read_text())["step"] == step + 20


def test_a_stop_signal_during_the_set_up_stops_before_the_first_step(tmp_path):
    [alone] = run(1, train(task=PROGRAMS / "stopped_early.py"), tmp_path)
    assert alone.code == 95, alone
    assert not (tmp_path / "checkpoints").exists()


def test_a_disk_that_refuses_fails_the_save_and_not_the_training(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The checkpoint of this network has 900 kB; the limit is inherited by the rank.
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
    try:
        with started(1, train("--epochs", "2", "--option", "hidden=1000"), tmp_path) as ranks:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            [alone] = ranks.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert alone.code == 2, alone
    assert "WARNING: The checkpoint checkpoints/step_00000015 could not be written: File too large." in alone.err
    assert "error: Training is done, but its final weights were not saved. The checkpoint checkpoints/" in alone.err
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert json.loads((tmp_path / "result.json").read_text())["step"] == 30


def test_an_error_of_the_user_is_one_sentence(tmp_path):
    for rank in run(2, train("--global-batch", "13", task=PROGRAMS / "small.py"), tmp_path):
        assert rank.code == 2
        assert rank.err == (
            "error: A global batch of 13 can't be shared evenly by 2 ranks: "
            "the nearest that can are 12 and 14 (--global-batch).\n"
        )
