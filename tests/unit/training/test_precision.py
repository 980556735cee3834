"""fp16: refused where it can't be computed, and the scaling of gradients where it can."""

from threading import Thread

import pytest
import torch
from torch import nn

from orchestrator.training import precision
from orchestrator.training.data.sampler import Share
from orchestrator.training.data.samples import Data
from orchestrator.training.data.task import Task
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import UserError
from orchestrator.training.options import parse
from orchestrator.training.strategies import Setup, find

CPU = torch.device("cpu")
INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def strategy(*arguments: str, inputs: torch.Tensor = INPUTS):
    """A strategy for a linear model of three inputs, and its data."""
    torch.manual_seed(0)
    options = parse(["--task", "t.py", *arguments])
    data = Data((inputs, inputs.sum(1, keepdim=True)), (inputs, inputs.sum(1, keepdim=True)), "sums")
    task = Task(
        "t", data=lambda _: data, model=lambda _: nn.Linear(3, 1), loss=nn.functional.mse_loss,
        optimizer=lambda parameters, options: torch.optim.SGD(parameters, lr=options.lr),
    )  # fmt: skip
    return find(options.strategy)(Setup(options, task, Ranks(), CPU, grouped=False), task.model(options)), data.train


@pytest.mark.parametrize("name", ["single", "ddp", "fsdp"])
def test_fp16_on_the_cpu_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UserError, match=r"fp16 computes on GPUs only, .* the CPU: choose bf16"):
        strategy("--strategy", name, "--precision", "fp16")


def test_scaled_gradients_give_the_same_step_and_an_overflow_gives_none() -> None:
    plain, data = strategy()
    scaled, _ = strategy()
    scaled.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for each in (plain, scaled):
        for _ in range(3):
            each.optimizer.zero_grad()
            each.backward(data, Share(torch.arange(6), 6))
            each.step()
    assert torch.equal(plain.model.weight, scaled.model.weight)  # a power of two rounds nothing
    before = scaled.model.weight.detach().clone()
    scaled.backward((INPUTS.mul(1e38), data[1]), Share(torch.arange(6), 6))
    scaled.step()
    assert torch.equal(scaled.model.weight, before)
    assert scaled.scaler.get_scale() == 2.0**9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fp16 needs a GPU")
def test_fp16_trains_on_a_gpu() -> None:
    options = parse(["--task", "t.py", "--precision", "fp16", "--strategy", "single"])
    gpu = torch.device("cuda", 0)
    task = Task("t", data=lambda _: None, model=lambda _: nn.Linear(3, 1), loss=nn.functional.mse_loss)
    made = find("single")(Setup(options, task, Ranks(), gpu, grouped=False), nn.Linear(3, 1))
    data = (INPUTS.to(gpu), INPUTS.sum(1, keepdim=True).to(gpu))
    losses = []
    for _ in range(50):
        made.optimizer.zero_grad()
        losses.append(float(made.backward(data, Share(torch.arange(6), 6))))
        made.step()
    assert made.scaler.is_enabled()
    assert losses[-1] < losses[0]


IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(1))


def of_images(*arguments: str):
    """A strategy for two convolutions."""
    options = parse(["--task", "t.py", *arguments])
    task = Task(
        "t", data=lambda _: None, model=lambda _: convolutions(), loss=nn.functional.mse_loss,
        optimizer=lambda parameters, options: torch.optim.SGD(parameters, lr=options.lr, fused=options.fused),
    )  # fmt: skip
    return find(options.strategy)(Setup(options, task, Ranks(), CPU, grouped=False), convolutions())


@pytest.mark.parametrize("name", ["single", "dp", "ddp", "model-parallel"])
def test_channels_last_is_how_convolutions_compute_and_changes_no_result(name: str) -> None:
    usual, turned = of_images("--strategy", "single"), of_images("--strategy", name, "--channels-last")
    outputs = [each.model[0](IMAGES) for each in (usual, turned)]
    assert [out.is_contiguous(memory_format=torch.channels_last) for out in outputs] == [False, True]
    targets = torch.randn(6, 32, generator=torch.Generator().manual_seed(1))
    for each in (usual, turned):
        for _ in range(2):
            each.begin_step()
            each.backward((IMAGES, targets), Share(torch.arange(6), 6))
            each.step()
    turned.load_full(turned.full_state(), "itself")
    assert turned.model[3].weight.is_contiguous(memory_format=torch.channels_last)
    for key, value in usual.model.state_dict().items():
        torch.testing.assert_close(turned.model.state_dict()[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--strategy", "fsdp", "--channels-last"),
            "--channels-last does not work with the strategy fsdp: FSDP shards only",
        ),
        (
            ("--strategy", "pipeline", "--channels-last"),
            "--channels-last does not work with the strategy pipeline: what",
        ),
        (
            ("--strategy", "dp", "--compile", "inductor"),
            "--compile does not work with the strategy dp: the model is copied",
        ),
        (
            ("--strategy", "dp-balanced", "--compile", "inductor"),
            "--compile does not work with the strategy dp-balanced: ",
        ),
        (("--fused",), r"the SGD of the task t is not fused: write SGD\(\.\.\., fused=options\.fused\)"),
    ],
)
def test_what_a_strategy_does_not_take_for_speed_is_refused_in_a_sentence(arguments: tuple, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        strategy(*arguments)


def test_without_a_compiler_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    sentence = (
        r"Rank 0 can't compile with inductor: its machine has no C\+\+ compiler 'no-such-compiler': install g\+\+"
    )
    with pytest.raises(UserError, match=sentence):
        strategy("--compile", "inductor")
    monkeypatch.setenv("CXX", "python3")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(UserError, match=r"has no Python\.h, which .*: install python3-dev"):
        strategy("--compile", "inductor")
    strategy("--compile", "aot_eager")  # needs none


def test_how_an_optimizer_computes_is_not_taken_from_a_checkpoint() -> None:
    plain, fused = of_images(), of_images("--fused")
    for each in (plain, fused):
        each.begin_step()
        each.backward((IMAGES, torch.zeros(6, 32)), Share(torch.arange(6), 6))
        each.step()
    plain.load_full(fused.full_state(), "a checkpoint")
    fused.load_full(plain.full_state(), "a checkpoint")
    assert [each.optimizer.param_groups[0]["fused"] for each in (plain, fused)] == [False, True]
    for each in (plain, fused):
        each.step()


def test_what_ddp_can_not_do_together_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="both --static-graph and --accumulate"):
        strategy("--static-graph", "--accumulate", "2")


def test_weights_that_are_no_numbers_are_noticed() -> None:
    made, _ = strategy()
    assert made.is_finite()
    made.model.bias.data.fill_(float("inf"))
    assert not made.is_finite()


def test_a_thread_of_dp_computes_in_the_precision_that_was_asked_for() -> None:
    made, _ = strategy("--strategy", "dp", "--precision", "bf16")
    plain, _ = strategy("--strategy", "dp")
    inputs = torch.linspace(0, 1, 18).reshape(6, 3) + 1e-3
    found: list[torch.Tensor] = []

    def compute() -> None:
        torch.set_autocast_dtype("cpu", torch.float16)  # what a GPU's threads begin with
        found.append(made.network(inputs))

    thread = Thread(target=compute)
    thread.start()
    thread.join()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = made.model(inputs).float()
    assert torch.equal(found[0], expected)
    assert not torch.equal(found[0], plain.network(inputs))


def test_auto_is_fp32_on_a_cpu() -> None:
    assert precision.resolve("auto", CPU) == "fp32"
    assert precision.resolve("bf16", CPU) == "bf16"


def test_fp8_is_refused_where_it_can_not_be_computed() -> None:
    with pytest.raises(UserError, match=r"--precision fp8 (needs torchao: pip install torchao|computes on GPUs of)"):
        strategy("--precision", "fp8")


def test_a_mode_is_the_compilers_that_has_it() -> None:
    with pytest.raises(UserError, match="--compile-mode max-autotune needs --compile inductor: add it"):
        strategy("--compile-mode", "max-autotune")
