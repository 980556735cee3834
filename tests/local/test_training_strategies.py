"""Each strategy against the plain training in one process, with real ranks and the last batch uneven."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint.resume import Loaded, whole
from tests.local.programs.ranks import Ended, Training, trainings

pytestmark = pytest.mark.timeout(400)  # many trainings, in a fixture

LENGTH = ("--steps", "11", "--global-batch", "12", "--lr", "0.05", "--save-every", "100")
ADAM, DROPOUT, FLOAT32 = (("--option", f"{name}") for name in ("adam=true", "dropout=0.3", "single=true"))
OTHERS = [("fsdp", "fsdp"), ("fsdp", "ddp"), ("ddp", "fsdp"), ("fsdp", "pipeline"), ("pipeline", "accelerate")]
# What makes a step faster and leaves it what it is.
FASTER = (*ADAM, "--fused", "--compile", "aot_eager")
# Sample 20 is NaN: it comes up in the first epoch, in steps 1 to 4.
POISONED = ("--option", "poison=20", "--log-every", "100", "--save-every", "1")
DEVICES = ("dp", "dp-balanced", "model-parallel")  # strategies of one process
WAYS = ("accelerate", "pipeline")  # strategies of several ranks beside ddp and fsdp
HALVED = ("ddp", "fsdp", "pipeline", "accelerate")
# How large the steps are: resumed within the warm-up, and while the rate falls.
PACED = (*ADAM, "--clip", "0.5", "--schedule", "cosine", "--warmup", "6")
DEEP = ("--option", "deep=true", *PACED)
DEEP_IN_WAYS = {
    "recomputed": ("--activation-checkpointing", "--no-reshard-after-forward"),
    "copies": ("--shard-ranks", "1"),
    "tensor": ("--tensor-ranks", "2"),
}
CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # in float64; what differs is the order of sums


def asked(folder: str, strategy: str, *more: str, **variables: str) -> Training:
    return Training(folder, (*LENGTH, "--strategy", strategy, *more), variables)


def state(folder: Path) -> dict:
    """What the newest checkpoint of a training holds."""
    found = checkpoints.newest(folder / "checkpoints")
    assert found is not None
    assert found.problem is None
    return whole(Loaded(checkpoints.load(found.path)[0], found.path))


def assert_close(one: Path, other: Path, **tolerance: float) -> None:
    weights, expected = state(one)["model"], state(other)["model"]
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, **(tolerance or CLOSE))


def assert_same(one: Path, other: Path) -> None:
    assert_close(one, other, rtol=0, atol=0)


def all_went_well(ended: list[list[Ended]]) -> None:
    assert {rank.code for ranks in ended for rank in ranks} == {0}, ended


def ddp_in_its_ways() -> list[Training]:
    return [
        asked("sgd", "ddp"),
        asked("adam", "ddp", *ADAM),
        asked("float32", "ddp", *FLOAT32),
        asked("parts", "ddp", "--accumulate", "3"),
        asked("static", "ddp", "--static-graph", "--no-gradient-as-bucket-view", "--bucket-cap-mb", "1"),
    ]


def fsdp_in_its_ways() -> list[Training]:
    return [asked("fsdp", "fsdp", *ADAM), asked("fsdp-parts", "fsdp", "--accumulate", "3")]


def resumed(name: str, strategy: str, *more: str) -> list[Training]:
    """A training without a break, and one of the same that is broken after 5 of 11 steps, within the second epoch."""
    ways = (strategy, *ADAM, *DROPOUT, *more)
    broken = f"{name}-broken"
    return [asked(f"{name}-whole", *ways), asked(broken, *ways, "--steps", "5"), asked(broken, *ways)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trainings of one process that the others are held against."""
    folder = tmp_path_factory.mktemp("plain")
    wanted = [
        asked("sgd", "single"),
        asked("adam", "single", *ADAM),
        asked("float32", "single", *FLOAT32),
        asked("parts", "single", "--accumulate", "3"),
        asked("alone", "ddp"),
        asked("sgd-28", "single", "--global-batch", "28"),
        *(asked(name, name, *ADAM) for name in DEVICES),
        *(asked(f"faster-{name}", name, *FASTER) for name in ("single", "model-parallel")),
        asked("paced", "single", *PACED),
        asked("deep", "single", *DEEP),
        asked("deep-recomputed", "single", *DEEP, "--activation-checkpointing"),
        *resumed("single", "single", *PACED, "--deterministic"),
        *resumed("model-parallel", "model-parallel"),
    ]
    refused = [asked(f"nan-{name}", name, *POISONED) for name in ("single", *DEVICES)]
    ended = trainings(1, [*wanted, *refused], folder)
    all_went_well(ended[: len(wanted)])
    assert {rank.code for ranks in ended[len(wanted) :] for rank in ranks} == {93}
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Ended]]]:
    """Trainings of two ranks, and those that two ranks can't do."""
    folder = tmp_path_factory.mktemp("two")
    wanted = [*ddp_in_its_ways(), *fsdp_in_its_ways(), *resumed("fsdp", "fsdp", "--accumulate", "2")]
    aside = ("fsdp", *ADAM, *DROPOUT, "--accumulate", "2", "--async-save")
    wanted += [asked("fsdp-aside", *aside, "--steps", "5"), asked("fsdp-aside", *aside)]
    wanted += [asked(f"half-{name}", name, *ADAM, "--steps", "5") for name in ("ddp", "fsdp", "pipeline")]
    wanted += [asked(name, name, *ADAM) for name in WAYS]
    wanted += [asked(f"{name}-parts", name, "--accumulate", "3") for name in WAYS]
    wanted += [*resumed("pipeline", "pipeline"), *resumed("accelerate", "accelerate")]
    wanted += [asked(f"faster-{name}", name, *FASTER) for name in ("fsdp", "pipeline", "accelerate")]
    wanted += [asked("faster-ddp", "ddp", *FASTER, "--accumulate", "2")]
    wanted += [asked(f"bf16-{name}", name, *FLOAT32, "--precision", "bf16") for name in HALVED]
    wanted += [asked("compressed", "ddp", *FLOAT32, "--gradient-compression", "bf16")]
    wanted += [asked(f"paced-{name}", name, *PACED) for name in HALVED]
    wanted += [asked(f"deep-{name}", "fsdp", *DEEP, *more) for name, more in DEEP_IN_WAYS.items()]
    in_parts = asked("tensor-broken", "fsdp", *DEEP, *DEEP_IN_WAYS["tensor"])
    wanted += [replace(in_parts, arguments=(*in_parts.arguments, "--steps", "5")), in_parts]
    unshared = asked("unshared-{rank}", "fsdp", *ADAM)
    wanted += [asked(unshared.folder, "fsdp", *ADAM, "--steps", "5"), unshared]
    refused = [asked(f"nan-{name}", name, *POISONED) for name in HALVED]
    refused += [asked("no-plan", "fsdp", "--tensor-ranks", "2"), asked("no-part", "fsdp", "--shard-ranks", "3")]
    refused += [asked("no-single", "single"), asked("no-batchnorm", "ddp", "--sync-batchnorm")]
    ended = trainings(2, [*wanted, *refused], folder)
    all_went_well(ended[: len(wanted)])
    return folder, {each.folder: ranks for each, ranks in zip([*wanted, *refused], ended, strict=True)}


@pytest.fixture(scope="module")
def three(two, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings of three ranks, some of them broken and resumed, or resumed from where two ranks had come."""
    folder = tmp_path_factory.mktemp("three")
    wanted = [
        *ddp_in_its_ways(),
        *resumed("ddp", "ddp", "--accumulate", "2"),
        *resumed("aside", "ddp", "--async-save"),
        *fsdp_in_its_ways(),
    ]
    for one, other in OTHERS:
        half = two[0] / f"half-{one}" / "checkpoints" / "step_00000005"
        wanted.append(asked(f"{one}-to-{other}", other, *ADAM, ORCH_RESUME=str(half)))
    all_went_well(trainings(3, wanted, folder))
    return folder


def assert_ddp_gives_the_weights_of_one_process(folder: Path, plain: Path) -> None:
    assert_close(folder / "float32", plain / "float32", rtol=1e-5, atol=1e-5)
    assert_close(folder / "adam", plain / "adam")
    for name in ("sgd", "parts", "static"):
        assert_close(folder / name, plain / "sgd")


def test_one_process_is_one_process_by_any_name(plain: Path) -> None:
    assert_same(plain / "alone", plain / "sgd")
    assert_close(plain / "parts", plain / "sgd")


def test_two_ranks_of_ddp_give_the_weights_of_one_process(two, plain: Path) -> None:
    assert_ddp_gives_the_weights_of_one_process(two[0], plain)


def test_three_ranks_of_ddp_give_the_weights_of_one_process(three: Path, plain: Path) -> None:
    assert_ddp_gives_the_weights_of_one_process(three, plain)


@pytest.mark.full("tests/local/test_training_strategies.py::test_three_ranks_of_ddp_give_the_weights_of_one_process")
@pytest.mark.soak
@pytest.mark.parametrize("ranks", [4, 7])
def test_more_ranks_of_ddp_give_the_weights_of_one_process(ranks: int, plain: Path, tmp_path: Path) -> None:
    wanted = [asked("sgd", "ddp", "--global-batch", "28")]
    if os.environ.get("SOAK") == "1":
        wanted.append(asked("parts", "ddp", "--global-batch", "28", "--accumulate", "3"))
    all_went_well(trainings(ranks, wanted, tmp_path))
    for each in wanted:
        assert_close(tmp_path / each.folder, plain / "sgd-28")


def test_a_resumed_training_equals_an_unbroken_one(three: Path) -> None:
    assert_same(three / "aside-broken", three / "aside-whole")
    assert_same(three / "ddp-broken", three / "ddp-whole")


@pytest.mark.parametrize("ranks", ["two", "three"])
def test_fsdp_gives_the_weights_of_one_process(ranks: str, two, three: Path, plain: Path) -> None:
    folder = two[0] if ranks == "two" else three
    assert_close(folder / "fsdp", plain / "adam")
    assert_close(folder / "fsdp-parts", plain / "sgd")


def test_each_rank_of_fsdp_writes_its_part_and_all_parts_are_hashed(three: Path) -> None:
    found = checkpoints.newest(three / "fsdp" / "checkpoints")
    assert found is not None
    assert set(found.manifest.files) == {"state.pt", ".metadata", *(f"__{rank}_0.distcp" for rank in range(3))}
    assert "model" not in checkpoints.load(found.path)[0]


def test_fsdp_writes_its_parts_beside_the_training(two) -> None:
    assert_same(two[0] / "fsdp-aside", two[0] / "fsdp-whole")
    found = checkpoints.newest(two[0] / "fsdp-aside" / "checkpoints")
    assert found is not None
    assert {"__0_0.distcp", "__1_0.distcp"} < set(found.manifest.files)
    assert (two[0] / "out.0.txt").read_text().count("for which training waited") >= 2  # by no other training


def test_a_resumed_training_of_fsdp_equals_an_unbroken_one(two) -> None:
    assert_same(two[0] / "fsdp-broken", two[0] / "fsdp-whole")


@pytest.mark.parametrize("name", DEVICES)
def test_one_process_on_several_devices_gives_the_weights_of_one_on_one(name: str, plain: Path) -> None:
    assert_close(plain / name, plain / "adam")


@pytest.mark.parametrize("name", WAYS)
def test_other_ways_of_several_ranks_give_the_weights_of_one_process(name: str, two, plain: Path) -> None:
    assert_close(two[0] / name, plain / "adam")
    assert_close(two[0] / f"{name}-parts", plain / "sgd")


def test_resumed_pieces_of_a_model_equal_unbroken_ones(two, plain: Path) -> None:
    assert_same(plain / "model-parallel-broken", plain / "model-parallel-whole")
    assert_same(two[0] / "pipeline-broken", two[0] / "pipeline-whole")


def test_resumed_trainings_of_single_and_accelerate_equal_unbroken_ones(two, plain: Path) -> None:
    assert_same(plain / "single-broken", plain / "single-whole")
    assert_same(two[0] / "accelerate-broken", two[0] / "accelerate-whole")


@pytest.mark.parametrize("name", ["single", "model-parallel", "ddp", "fsdp", "pipeline", "accelerate"])
def test_compiled_and_fused_it_gives_the_same_weights(name: str, two, plain: Path) -> None:
    folder = plain if name in ("single", "model-parallel") else two[0]
    assert_close(folder / f"faster-{name}", plain / "adam")


@pytest.mark.parametrize("name", HALVED)
def test_clipped_gradients_and_a_schedule_give_the_same_weights(name: str, two, plain: Path) -> None:
    assert_close(two[0] / f"paced-{name}", plain / "paced")
    with pytest.raises(AssertionError):
        assert_close(plain / "paced", plain / "adam")


def test_a_block_that_is_computed_twice_gives_the_same_weights(plain: Path) -> None:
    assert_same(plain / "deep-recomputed", plain / "deep")


@pytest.mark.parametrize("name", DEEP_IN_WAYS)
def test_fsdp_in_its_meshes_gives_the_weights_of_one_process(name: str, two, plain: Path) -> None:
    assert_close(two[0] / f"deep-{name}", plain / "deep")
    expected = json.loads((plain / "deep" / "result.json").read_text())["loss"]
    assert json.loads((two[0] / f"deep-{name}" / "result.json").read_text())["loss"] == pytest.approx(expected)


def test_resumed_layers_in_parts_equal_unbroken_ones(two) -> None:
    assert_close(two[0] / "tensor-broken", two[0] / "deep-tensor")


def test_every_way_evaluates_alike(two, three: Path, plain: Path) -> None:
    expected = json.loads((plain / "adam" / "result.json").read_text())
    for folder in [plain / "dp-balanced", *(two[0] / name for name in ("adam", "fsdp", "pipeline", "accelerate"))]:
        result = json.loads((folder / "result.json").read_text())
        assert result["test_samples"] == 11
        assert result["loss"] == pytest.approx(expected["loss"], rel=1e-9), folder
        assert result["error"] == pytest.approx(expected["error"], rel=1e-9), folder


def test_sixteen_bits_come_near(two, plain: Path) -> None:
    expected = json.loads((plain / "float32" / "result.json").read_text())["loss"]
    for name in ("compressed", *(f"bf16-{name}" for name in HALVED)):
        loss = json.loads((two[0] / name / "result.json").read_text())["loss"]
        assert loss == pytest.approx(expected, rel=0.01), name
        assert loss != expected, name


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_another_number_of_ranks_resumes_under_another_strategy(one: str, other: str, three: Path, plain: Path) -> None:
    assert_close(three / f"{one}-to-{other}", plain / "adam")


def test_without_a_shared_folder_rank_0_writes_what_it_has_gathered(two, plain: Path) -> None:
    found = checkpoints.newest(two[0] / "unshared-0" / "checkpoints")
    assert found is not None
    assert (found.step, list(found.manifest.files)) == (11, ["state.pt"])
    assert_close(two[0] / "unshared-0", plain / "adam")
    assert not (two[0] / "unshared-1" / "checkpoints").exists()


@pytest.mark.parametrize("name", HALVED)
def test_a_loss_that_is_no_number_ends_all_ranks_and_reaches_no_checkpoint(name: str, two) -> None:
    folder, ended = two[0] / f"nan-{name}", two[1][f"nan-{name}"]
    for rank in ended:
        assert rank.code == 93
        assert "The loss is nan at step " in rank.err
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    [diverged] = [line["step"] for line in lines if line["kind"] == "diverged"]
    for found in checkpoints.listing(folder / "checkpoints"):
        assert found.step < diverged
        trained = whole(Loaded(checkpoints.load(found.path)[0], found.path))["model"]
        assert all(value.isfinite().all() for value in trained.values())


def test_what_a_strategy_can_not_do_is_one_sentence(two) -> None:
    for rank in two[1]["no-single"]:
        assert (rank.code, rank.err.split(":")[0]) == (
            2,
            "The strategy single uses one process, but 2 ranks were started",
        )
    for rank in two[1]["no-plan"]:
        assert "The plan of the task small names layers that its model lacks: 0.0, 0.3." in rank.err
    for rank in two[1]["no-part"]:
        assert "--shard-ranks 3 does not divide the number of ranks, 2:" in rank.err
    for rank in two[1]["no-batchnorm"]:
        assert "SyncBatchNorm (--sync-batchnorm) computes on GPUs only" in rank.err
