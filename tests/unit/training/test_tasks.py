"""The shipped tasks: what they train on, and that each can be taken by every strategy that cuts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.training.data import cifar
from orchestrator.training.data.task import load_task
from orchestrator.training.errors import UserError
from orchestrator.training.options import parse
from orchestrator.training.strategies.layers import cut
from orchestrator.training.train import _choose_algorithms

JOBS = Path(__file__).parents[3] / "jobs"


@pytest.mark.parametrize("name", ["cifar10", "gpt", "regression"])
def test_a_task_needs_no_download_and_can_be_cut(name: str, tmp_path: Path) -> None:
    task = load_task(JOBS / f"{name}.py")
    options = parse(["--task", f"{name}.py", "--data", str(tmp_path)])
    data, again = task.data(options), task.data(options)
    assert all(torch.equal(one, other) for one, other in zip(data.train, again.train, strict=True))
    assert data.stand_in is (name == "cifar10")
    model = task.model(options)
    cut(model, 4)
    inputs, targets = (tensor[:6] for tensor in data.test)
    outputs = model(inputs)
    assert task.loss(outputs, targets).shape == ()
    assert all(value >= 0 for value in task.metrics(outputs, targets).values())


@pytest.mark.parametrize(("depth", "convolutions"), [(8, 7), (50, 49)])
def test_a_residual_network_has_the_depth_that_is_asked_for(depth: int, convolutions: int) -> None:
    options = parse(["--task", "t", "--option", f"depth={depth}", "--option", "width=2"])
    model = load_task(JOBS / "cifar10.py").model(options)
    weighted = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(weighted) == convolutions
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 10)
    with pytest.raises(UserError, match=r"9 layers can't be built: its depth is 6n \+ 2"):
        load_task(JOBS / "cifar10.py").model(parse(["--task", "t", "--option", "depth=9"]))


def test_the_binary_version_of_cifar_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number, name in enumerate((*cifar.TRAIN, *cifar.TEST)):
        (folder / name).write_bytes(bytes([number]) + bytes([10 * number]) * 3071 + b"\xff")
    data = cifar.cifar10(tmp_path)
    assert (data.name, data.stand_in) == ("cifar10", False)
    images, classes = data.train
    assert (images.shape, classes.tolist()) == ((5, 3, 32, 32), [0, 1, 2, 3, 4])
    assert images[2, 0, 0, 0] == 20
    assert images[2, 2, 31, 31] == 255
    (folder / "test_batch.bin").write_bytes(b"cut")
    with pytest.raises(UserError, match="are damaged"):
        cifar.cifar10(tmp_path)


def test_a_sum_of_the_gpt_is_right() -> None:
    task = load_task(JOBS / "gpt.py")
    module = __import__("sys").modules["orch_task_gpt"]
    lines = "".join(module.LETTERS[letter] for letter in module.text(50, seed=3)).splitlines()
    for line in lines:
        terms, _, total = line.partition("=")
        assert sum(map(int, terms.split("+"))) == int(total)
    # What counts for the accuracy are the three digits after "=".
    inputs, targets = (part[:1] for part in task.data(parse(["--task", "t"])).test)
    outputs = torch.nn.functional.one_hot(targets, len(module.LETTERS)).float()
    assert task.metrics(outputs, targets) == {"accuracy": 1.0}
    for place in range(module.LINE):
        wrong = outputs.clone()
        wrong[0, place] = 0
        wrong[0, place, (targets[0, place] + 1) % len(module.LETTERS)] = 1
        before = inputs[0, max(0, place - 2) : place + 1]
        assert (task.metrics(wrong, targets)["accuracy"] < 1) == (module.LETTERS.index("=") in before)


def test_augmented_images_are_parts_of_their_padded_originals(tmp_path: Path) -> None:
    options = parse(["--task", "cifar10.py", "--data", str(tmp_path), "--option", "augment=true"])
    plain, augmented = (load_task(JOBS / "cifar10.py").data(each) for each in (replace(options, options={}), options))
    assert torch.equal(augmented.test[0], plain.test[0])
    assert len(augmented.train) == len(plain.train[1])
    torch.manual_seed(0)
    padded = torch.nn.functional.pad(plain.train[0][7], (4, 4, 4, 4))
    places = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    seen = [augmented.train[7] for _ in range(20)]
    for image, target in seen:
        assert target == plain.train[1][7]
        assert any(torch.equal(image, place) or torch.equal(image, place.flip(2)) for place in places)
    assert any(not torch.equal(image, seen[0][0]) for image, _ in seen)


@pytest.mark.parametrize(("deterministic", "tries"), [(False, True), (True, False)])
def test_a_task_of_convolutions_has_cudnn_try_its_ways_unless_bits_count(
    deterministic: bool, tries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.backends.cudnn.benchmark
    try:
        _choose_algorithms(deterministic, load_task(JOBS / "cifar10.py").cudnn_benchmark)
        assert torch.backends.cudnn.benchmark is tries
        _choose_algorithms(deterministic, load_task(JOBS / "gpt.py").cudnn_benchmark)
        assert not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = before
