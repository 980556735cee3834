"""Which GPUs CUDA_VISIBLE_DEVICES means, in numbers, UUIDs and instances of MIG."""

from __future__ import annotations

import pytest

from orchestrator.protocol.places.devices import Device, given, is_gpu, named_by, numbered, shown, why_not

CARDS = [
    Device("GPU-aaaa1111", 0, "GPU-aaaa1111"),
    Device("GPU-bbbb2222", 1, "GPU-bbbb2222"),
    Device("MIG-cccc3333", 2, "GPU-dddd4444"),
    Device("MIG-cccc5555", 2, "GPU-dddd4444"),
]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,0", [1, 0]),
        (" 0 , 0 ", [0]),
        ("1,-1,0", [1]),
        ("9,0", []),  # CUDA sees nothing from the first one on that is not there
        ("0,9,1", [0]),
        ("GPU-bbbb2222", [1]),
        ("GPU-bb", [1]),
        ("MIG-cccc", []),  # which of the two?
        ("MIG-cccc5555,GPU-aaaa1111", [3, 0]),
        ("2", [2, 3]),
        ("GPU-dddd4444", [2, 3]),
        ("nonsense", []),
    ],
)
def test_the_variable_names_devices(visible: str | None, found: list[int]) -> None:
    assert named_by(visible, CARDS) == [CARDS[number] for number in found]


@pytest.mark.parametrize(
    ("job", "shell", "said"),
    [
        (None, "0", ""),
        ("", None, ""),
        ("1", None, ""),
        ("1", "0,1", ""),
        ("7", None, "the job's CUDA_VISIBLE_DEVICES=7 names 7, and it has 4 GPUs: 0 (GPU-aaaa1111), "),
        ("0,1", "1", "names 0 (GPU-aaaa1111), and the login shell there allows only CUDA_VISIBLE_DEVICES=1"),
        ("GPU-aaaa1111", "", "and the login shell there allows only CUDA_VISIBLE_DEVICES="),
    ],
)
def test_a_contradiction_is_a_sentence(job: str | None, shell: str | None, said: str) -> None:
    found = why_not(job, shell, CARDS)
    assert said in found
    assert bool(found) == bool(said)


ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_what_a_runs_processes_are_shown_names_the_cards_themselves() -> None:
    order = ORDER
    assert shown(["GPU-aaaa1111", "MIG-cccc3333"]) == {"CUDA_VISIBLE_DEVICES": "GPU-aaaa1111,MIG-cccc3333"}
    assert shown(["gpu-0", "gpu-3"]) == {"CUDA_VISIBLE_DEVICES": "0,3", **order}
    assert shown([]) == {}
    assert shown(["GPU-a", "gpu-3"]) == {"CUDA_VISIBLE_DEVICES": "GPU-a,3", **order}
    assert [is_gpu(name) for name in ("GPU-a", "MIG-a", "gpu-0", "slot-0")] == [True, True, True, False]


WHOLE = [Device(name, number, name) for number, name in enumerate(("GPU-a", "GPU-b", "GPU-c"))]


@pytest.mark.parametrize(
    ("names", "devices", "environ", "found"),
    [
        (["GPU-a"], WHOLE, {}, {"CUDA_VISIBLE_DEVICES": "0", **ORDER}),
        (["GPU-c", "GPU-a"], WHOLE, ORDER, {"CUDA_VISIBLE_DEVICES": "2,0", **ORDER}),  # in the job's order
        (["GPU-c"], WHOLE, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {"CUDA_VISIBLE_DEVICES": "GPU-c"}),
        (["GPU-c"], WHOLE, {"CUDA_DEVICE_ORDER": ""}, {"CUDA_VISIBLE_DEVICES": "GPU-c"}),
        (["MIG-cccc3333"], CARDS, {}, {"CUDA_VISIBLE_DEVICES": "MIG-cccc3333"}),
        (["GPU-aaaa1111"], CARDS, {}, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa1111"}),  # another card is in MIG mode
        (["GPU-aaaa1111"], CARDS[:3], {}, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa1111"}),
        (["GPU-c"], [WHOLE[0], WHOLE[2]], {}, {"CUDA_VISIBLE_DEVICES": "GPU-c"}),  # one in MIG mode has no instances
        (["GPU-c"], WHOLE[:2], {}, {"CUDA_VISIBLE_DEVICES": "GPU-c"}),
        (["GPU-c"], [], {}, {"CUDA_VISIBLE_DEVICES": "GPU-c"}),  # a container in which nothing tells of the cards
        ([], WHOLE, {}, {}),
    ],
)
def test_whole_cards_have_numbers_where_these_are_certain(
    names: list[str], devices: list[Device], environ: dict[str, str], found: dict[str, str]
) -> None:
    assert numbered(names, devices, environ) == found


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, "GPU-aaaa1111,GPU-bbbb2222,MIG-cccc3333,MIG-cccc5555"),
        ("", ""),
        ("1,GPU-aaaa", "GPU-bbbb2222,GPU-aaaa1111"),
        ("2", "MIG-cccc3333,MIG-cccc5555"),
    ],
)
def test_what_ranks_were_given_is_named_by_uuid(visible: str | None, found: str) -> None:
    assert given(visible, CARDS) == found


def test_a_card_that_nobody_knows_by_uuid_was_given_by_its_number() -> None:
    assert given(None, [Device("gpu-0", 0, "gpu-0"), Device("gpu-1", 1, "gpu-1")]) == "0,1"
