"""Reads the GPUs from the output of nvidia-smi. This is used if NVML can't be loaded.

`nvidia-smi -q -x` describes the cards, and `nvidia-smi -L` describes their MIG instances.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

from orchestrator.node.system.gpus.inventory import Gpu, GpuInventory, GpuProcess, MigInstance
from orchestrator.node.system.orphans import run

SECONDS = 30.0  # long, because nvidia-smi may have to load the driver first
UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
THROTTLES = {
    "sw_power_cap": "power cap", "hw_slowdown": "hardware slowdown", "sw_thermal_slowdown": "software thermal",
    "hw_thermal_slowdown": "hardware thermal", "hw_power_brake_slowdown": "power brake",
}  # fmt: skip


def look_by_program() -> GpuInventory:
    """Return the GPUs that nvidia-smi reports; empty if nvidia-smi is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return GpuInventory()
    described = output("-q", "-x")
    listed = output("-L") if "<current_mig>Enabled<" in described else ""
    return read_answers(described, listed)


def output(*arguments: str) -> str:
    """Return the output of nvidia-smi; "" if it is missing or fails."""
    try:
        done = run(["nvidia-smi", *arguments], SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_answers(described: str, listed: str = "") -> GpuInventory:
    """Parse the outputs of `nvidia-smi -q -x` and `nvidia-smi -L`. Return no GPUs if the first output is not valid
    XML.
    """
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(described)  # noqa: S314 (the driver's own program wrote it)
    except ElementTree.ParseError:
        return GpuInventory()
    cuda = re.fullmatch(r"(\d+)\.(\d+)", _text(root, "cuda_version") or "")
    instances = _instances_by_card(listed)
    gpus = [_gpu(index, each, instances) for index, each in enumerate(root.findall("gpu"))]
    return GpuInventory(
        tuple(gpu for gpu in gpus if gpu.uuid),
        _text(root, "driver_version"),
        (int(cuda[1]), int(cuda[2])) if cuda else None,
    )


def _gpu(index: int, card: Any, instances: dict[str, list[MigInstance]]) -> Gpu:
    uuid = _text(card, "uuid") or ""
    reasons = next(
        (found for name in ("event", "throttle") if (found := card.find(f"clocks_{name}_reasons")) is not None), None
    )
    mig = _text(card, "mig_mode/current_mig")
    pending = [
        _yes(_text(card, where)) for where in ("retired_pages/pending_retirement", "remapped_rows/remapped_row_pending")
    ]
    known = [each for each in pending if each is not None]
    return Gpu(
        index=index,
        uuid=uuid,
        name=_text(card, "product_name"),
        bus_id=card.get("id"),
        minor=_whole(_text(card, "minor_number")),
        memory_total=_bytes(_text(card, "fb_memory_usage/total")),
        memory_used=_bytes(_text(card, "fb_memory_usage/used")),
        utilization=_whole(_text(card, "utilization/gpu_util")),
        power=_first_number(card, "gpu_power_readings/power_draw", "gpu_power_readings/average_power_draw",
                            "gpu_power_readings/instant_power_draw", "power_readings/power_draw"),
        power_limit=_first_number(card, "gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        temperature=_whole(_text(card, "temperature/gpu_temp")),
        sm_clock=_whole(_text(card, "clocks/sm_clock")),
        throttle_reasons=None if reasons is None else _throttles(reasons),
        ecc_volatile=_errors(card.find("ecc_errors/volatile")),
        ecc_aggregate=_errors(card.find("ecc_errors/aggregate")),
        pending_retirement=any(known) if known else None,
        remap_failed=_yes(_text(card, "remapped_rows/remapped_row_failure")),
        compute_mode=(_text(card, "compute_mode") or "").lower().replace("_", "-") or None,
        persistence=_yes(_text(card, "persistence_mode")),
        mig=None if mig is None else mig == "Enabled",
        instances=tuple(instances.get(uuid, ())),
        processes=tuple(_processes(card)) if card.find("processes") is not None else None,
    )  # fmt: skip


def _throttles(reasons: Any) -> tuple[str, ...]:
    active = [each.tag for each in reasons if (each.text or "").strip() == "Active"]
    return tuple(word for name, word in THROTTLES.items() if any(tag.endswith(name) for tag in active))


def _errors(counters: Any) -> int | None:
    """Return the number of uncorrectable memory errors. For cards before Ampere, the total has another name."""
    if counters is None:
        return None
    found = [_whole(each.text) for each in counters if "uncorrectable" in each.tag]
    found = found or [_whole(_text(counters, "double_bit/total"))]
    known = [each for each in found if each is not None]
    return sum(known) if known else None


def _processes(card: Any) -> list[GpuProcess]:
    found = []
    for each in card.findall("processes/process_info"):
        pid = _whole(_text(each, "pid"))
        if pid is not None:
            instances = (_whole(_text(each, "gpu_instance_id")), _whole(_text(each, "compute_instance_id")))
            found.append(
                GpuProcess(pid, _bytes(_text(each, "used_memory")), "G" in (_text(each, "type") or ""), *instances)
            )
    return found


def _instances_by_card(listed: str) -> dict[str, list[MigInstance]]:
    """Return a dict from a card's UUID to the card's MIG instances, as the output of `nvidia-smi -L` lists them."""
    found: dict[str, list[MigInstance]] = {}
    card = ""
    for line in listed.splitlines():
        match = re.search(r"^(\s*)(.*?)\s*\(UUID: ([\w/-]+)\)", line)
        if match is None:
            continue
        if not match[1]:
            card = match[3]
        else:
            name = re.sub(r"\s+Device\s+\d+:$", "", match[2])
            found.setdefault(card, []).append(MigInstance(match[3], name))
    return found


def _text(element: Any, where: str) -> str | None:
    """Return the text at a path below an XML element. Return None if the text is empty or means "not available"."""
    text = (element.findtext(where) or "").strip()
    return None if text in ("", "N/A", "[N/A]") or text.startswith(("[Not", "Not ", "Unknown")) else text


def _whole(text: str | None) -> int | None:
    match = re.match(r"\d+", text.strip()) if text else None
    return int(match[0]) if match else None


def _first_number(card: Any, *places: str) -> float | None:
    for where in places:
        match = re.match(r"\d+(\.\d+)?", _text(card, where) or "")
        if match:
            return float(match[0])
    return None


def _bytes(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+) (\w+)", text or "")
    return int(match[1]) * UNITS.get(match[2].lower(), 1 << 20) if match else None


def _yes(text: str | None) -> bool | None:
    return None if text is None else text in ("Yes", "Enabled")
