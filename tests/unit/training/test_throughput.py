"""What is told of a device's use: the FLOPs of a sample, the peaks, the words."""

import pytest
import torch

from orchestrator.training.progress.throughput import Utilization, forward_flops, in_progress_line, peak

from .test_precision import CPU, convolutions, of_images, strategy


def test_the_flops_of_a_sample_are_those_of_its_matrices() -> None:
    made, data = strategy()
    before = torch.get_rng_state()
    assert forward_flops(made, data) == 2 * 3 * 1
    assert torch.equal(torch.get_rng_state(), before)
    made = of_images("--strategy", "single")
    unchanged = {name: value.clone() for name, value in convolutions().state_dict().items()}
    images = torch.zeros(6, 3, 8, 8)
    assert forward_flops(made, (images, images)) == 2 * (4 * 3 * 9 * 36 + 2 * 4 * 9 * 16)
    for name, value in made.model.state_dict().items():  # running statistics among them
        assert torch.equal(value, unchanged[name])


def test_a_peak_is_that_of_the_device_and_its_numbers() -> None:
    assert peak("NVIDIA H200", "bf16") == 989e12
    assert peak("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak("NVIDIA A100-SXM4-80GB", "tf32") == 156e12
    assert peak("NVIDIA H200", "fp32") is None
    assert peak("Quadro P1000", "bf16") is None


def test_of_a_cpu_nothing_is_told() -> None:
    used = Utilization([CPU], 2, "fp32")
    assert (used.is_measured, used.values(5.0)) == (False, {})


def test_a_progress_line_tells_tokens_mfu_and_memory() -> None:
    assert in_progress_line({}, 10.0, None) == []
    assert in_progress_line({"mfu": 0.4512, "memory": 80 * 2.0**30}, 20.0, 1000) == [
        "20,000 tokens/s",
        "MFU 45.1 %",
        "peak 80.0 GiB",
    ]
    assert in_progress_line({}, None, 1000) == []


@pytest.mark.parametrize("rate", [None, 0.0])
def test_without_a_rate_there_is_no_mfu(rate: float | None) -> None:
    assert "mfu" not in Utilization([CPU], 1, "bf16").values(rate)
