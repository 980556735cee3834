"""Reads which GPUs CUDA_VISIBLE_DEVICES selects, and sets the variable for a process.

GPUs are numbered as CUDA numbers them with CUDA_DEVICE_ORDER=PCI_BUS_ID: in PCI order, among the cards that the process
can open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"
GIVEN = "ORCH_GPUS"  # has the UUIDs of a node's GPUs, even if a program changes CUDA_VISIBLE_DEVICES
ORDERED_BY, PCI = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
ORDER = {ORDERED_BY: PCI}
NONE_FROM_HERE = ("-1", "NoDevFiles")  # entries after one of these are ignored


class Device(NamedTuple):
    """A GPU: a whole card, or a MIG instance of a card."""

    name: str  # the device's UUID, or gpu-0 if the UUID is unknown
    number: int  # the card's position among the cards that the process can open
    card: str  # the card's UUID


def is_gpu(place: str) -> bool:
    """Return whether the name of a place (a GPU or a CPU slot that a run can hold) is that of a GPU."""
    return place.startswith(("GPU-", "MIG-", "gpu-"))


def words_of(visible: str) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES before the first entry that is not valid."""
    found: list[str] = []
    for word in (part.strip() for part in visible.split(",")):
        if not word or word in NONE_FROM_HERE:
            break
        found.append(word)
    return found


def named_by(visible: str | None, devices: Sequence[Device]) -> list[Device]:
    """Return the devices that CUDA_VISIBLE_DEVICES selects, in its order. As in CUDA, an unknown entry ends the
    list.
    """
    if visible is None:
        return list(devices)
    found: list[Device] = []
    for word in words_of(visible):
        meant = _meant(word, devices)
        if not meant:
            break
        found += [each for each in meant if each not in found]
    return found


def why_not(visible: str | None, shell: str | None, devices: Sequence[Device]) -> str:
    """Return why the job can't use the devices in its CUDA_VISIBLE_DEVICES; "" if it can. `shell` is the login shell's
    value of the variable, which limits the choice.
    """
    if visible is None:
        return ""
    unknown = [word for word in words_of(visible) if not _meant(word, devices)]
    if unknown:
        there = f"it has {len(devices)} GPUs: {', '.join(_in_words(each) for each in devices)}"
        return f"the job's {VISIBLE}={visible} names {unknown[0]}, and {there}"
    shown = named_by(shell, devices)
    outside = [each for each in named_by(visible, devices) if each not in shown]
    if outside:
        said = f"the job's {VISIBLE}={visible} names {', '.join(_in_words(each) for each in outside)}"
        return f"{said}, and the login shell there allows only {VISIBLE}={shell}"
    return ""


def shown(names: Sequence[str]) -> dict[str, str]:
    """Return the environment variables that make only these GPUs visible to a process, by UUID; empty if there are no
    names.

    A card whose UUID is unknown is selected by its number. Numbers depend on CUDA_DEVICE_ORDER, so this variable is
    returned too.
    """
    numbered = any(name.startswith("gpu-") for name in names)
    return {VISIBLE: ",".join(map(_word, names)), **(ORDER if numbered else {})} if names else {}


def numbered(names: Sequence[str], devices: Sequence[Device], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make only these GPUs visible to a process, by number, because many programs
    can't read UUIDs.

    `devices` has all GPUs that the process can open, and `environ` is its environment. The GPUs are named by UUID if
    their numbers are not certain: CUDA numbers cards differently if a card is in MIG mode, or if CUDA_DEVICE_ORDER has
    another value. A number is missing if a card in MIG mode has no instances.
    """
    numbers = {each.name: str(each.number) for each in devices}
    are_whole = all(each == (each.card, place, each.card) for place, each in enumerate(devices))
    is_certain = are_whole and environ.get(ORDERED_BY, PCI) == PCI and numbers.keys() >= set(names)
    if not names or not is_certain:
        return shown(names)
    return {VISIBLE: ",".join(numbers[name] for name in names), **ORDER}


def given(visible: str | None, devices: Sequence[Device]) -> str:
    """Return the value of ORCH_GPUS for a process: the devices in its CUDA_VISIBLE_DEVICES. `devices` has all devices
    that the process can open.
    """
    return ",".join(_word(each.name) for each in named_by(visible, devices))


def _word(name: str) -> str:
    return name[len("gpu-") :] if name.startswith("gpu-") else name


def _meant(word: str, devices: Sequence[Device]) -> list[Device]:
    if word.isdigit():  # for a card that MIG has divided, this means all its instances
        return [each for each in devices if each.number == int(word)]
    return [each for each in devices if word in (each.name, each.card)] or _abbreviated(word, devices)


def _abbreviated(word: str, devices: Sequence[Device]) -> list[Device]:
    """Return the device whose UUID begins with this text, as a list. The list is empty unless exactly one device
    matches.
    """
    found = [each for each in devices if word.startswith(("GPU-", "MIG-")) and each.name.startswith(word)]
    return found if len(found) == 1 else []


def _in_words(device: Device) -> str:
    return device.name if device.name.startswith("gpu-") else f"{device.number} ({device.name})"
