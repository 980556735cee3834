"""A management library of NVIDIA's for tests: compiled from nvml.c, it tells of the GPUs that a text file describes."""

from __future__ import annotations

import functools
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.patience import PATIENCE

SOURCE = Path(__file__).with_name("nvml.c")
GIB = 1 << 30
OWN = secrets.token_hex(4)[:7]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="orch-nvml-", ignore_cleanup_errors=True)
    words = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-O1", str(SOURCE), "-lpthread"]
    for name, options in (("new", []), ("old", ["-DOLD"])):
        (Path(folder.name) / name).mkdir()
        subprocess.run(
            [*words, *options, "-o", f"{folder.name}/{name}/libnvidia-ml.so.1"], check=True, timeout=PATIENCE
        )
    return folder


def library_folder(*, old: bool = False) -> str:
    """Return the folder for LD_LIBRARY_PATH; the old library lacks what drivers have got since."""
    return f"{_folder().name}/{'old' if old else 'new'}"


class Stub(NamedTuple):
    """The file with the state, and the variables by which a program meets the library."""

    state: Path
    environment: dict[str, str]


def uuid(number: int) -> str:
    """Return the UUID of a card; other tests on this machine hold others."""
    return f"GPU-{OWN}{number:x}-0000-4000-8000-0123456789ab"


def mig_uuid(number: int, part: int) -> str:
    """Return the UUID of an instance of a card."""
    return f"MIG-{OWN[:5]}{number:x}{part:02x}-{part:04x}-4000-8000-0123456789ab"


def card(number: int, *lines: str) -> str:
    """Return the description of a healthy H200, with further lines."""
    usual = (
        f"gpu {uuid(number)}", "name NVIDIA H200", f"bus 00000000:{number + 16:02X}:00.0",
        f"memory {139 * GIB} {GIB // 2}", "utilization 0", "power 76000", "limit 700000", "temperature 31",
        "clock 345", "throttle 1", "volatile 0", "aggregate 0", "pending 0", "remap 0 0 0 0", "mode 0",
        "persistence 1", "mig 0",
    )  # fmt: skip
    return "\n".join([*usual, *lines, ""])


def describe(state: Path, *cards: str, head: str = "driver 580.65.06\ncuda 13000\n") -> Stub:
    """Write the state at once, for a program may be reading it."""
    part = state.with_suffix(".part")
    part.write_text(head + "".join(cards))
    part.replace(state)
    return Stub(state, {"LD_LIBRARY_PATH": library_folder(), "NVML_STUB": str(state)})


__all__ = ["GIB", "Stub", "card", "describe", "library_folder", "mig_uuid", "uuid"]
