"""The GPUs that a process can be given, and which of them CUDA_VISIBLE_DEVICES names. Pure. Python 3.9.

Numbers are those of CUDA_DEVICE_ORDER=PCI_BUS_ID, which nvidia-smi uses too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"
GIVEN = "ORCH_GPUS"  # what a node's ranks were given, by UUID, whatever a program makes of the variable above
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
NONE_FROM_HERE = ("-1", "NoDevFiles")  # what follows one of these is not seen either


class Device(NamedTuple):
    """A card, or an instance that MIG has made of it."""

    name: str  # its UUID; gpu-0 where nobody tells it
    number: int  # of the card
    card: str  # the card's UUID


def is_gpu(place: str) -> bool:
    """Tell whether the name of a place is that of a GPU, and not of a slot."""
    return place.startswith(("GPU-", "MIG-", "gpu-"))


def words_of(visible: str) -> list[str]:
    """Return the parts of the variable that count."""
    found: list[str] = []
    for word in (part.strip() for part in visible.split(",")):
        if not word or word in NONE_FROM_HERE:
            break
        found.append(word)
    return found


def named_by(visible: str | None, devices: Sequence[Device]) -> list[Device]:
    """Return the devices that the variable names, in its order; as CUDA does, none from the first unknown one on."""
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
    """Return what is wrong with the devices that a job asks for where its login shell allows others, in a sentence."""
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


def shown(places: Iterable[str]) -> dict[str, str]:
    """Return the variables by which a process sees these places alone; nothing where none of them is a GPU.

    A card whose UUID nobody tells has its number, which only one order makes right.
    """
    names = [name for name in places if is_gpu(name)]
    numbered = any(name.startswith("gpu-") for name in names)
    return {VISIBLE: ",".join(map(_word, names)), **(ORDER if numbered else {})} if names else {}


def given(visible: str | None, devices: Sequence[Device]) -> str:
    """Return which of the devices that a process may open the variable names, as GIVEN has them.

    CUDA counts the cards that it may open from 0, where the library may count all of the machine.
    """
    cards = list(dict.fromkeys(each.number for each in sorted(devices, key=lambda each: each.number)))
    counted = [each._replace(number=cards.index(each.number)) for each in devices]
    return ",".join(_word(each.name) for each in named_by(visible, counted))


def _word(name: str) -> str:
    return name[len("gpu-") :] if name.startswith("gpu-") else name


def _meant(word: str, devices: Sequence[Device]) -> list[Device]:
    if word.isdigit():  # of a card that MIG has divided, all its instances
        return [each for each in devices if each.number == int(word)]
    return [each for each in devices if word in (each.name, each.card)] or _abbreviated(word, devices)


def _abbreviated(word: str, devices: Sequence[Device]) -> list[Device]:
    """Return the one device whose UUID begins so."""
    found = [each for each in devices if word.startswith(("GPU-", "MIG-")) and each.name.startswith(word)]
    return found if len(found) == 1 else []


def _in_words(device: Device) -> str:
    return device.name if device.name.startswith("gpu-") else f"{device.number} ({device.name})"
