"""What to do about the failures that everybody meets: a rule by the words, code or signal of the culprit. Pure."""

from __future__ import annotations

import re

_RULES: tuple[tuple[str, str], ...] = (
    (
        r"can't reach (node|its neighbour)",
        "a firewall, or an address of another network: open the profile's ports, or name addr and interface in it",
    ),
    (r"input \S+ can't be fetched", "give a source that this very node can open, or a file that every node sees"),
    (
        r"CUDA out of memory|OutOfMemoryError|HIP out of memory",
        "the GPU ran out of memory: lower global_batch, use precision bf16, or more ranks",
    ),
    (
        r"Cannot allocate memory|MemoryError|can't allocate memory",
        "the host ran out of memory: fewer ranks a node, or a smaller batch",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "a disk is full: make room in the run directory, or set checkpoint.dir elsewhere",
    ),
    (
        r"bus error|SIGBUS|unable to (open|write to|mmap) shared memory|/dev/shm",
        "shared memory is too small for the DataLoader: in a container set container.shm, or use fewer workers",
    ),
    (
        r"ModuleNotFoundError|ImportError|No module named",
        "an import failed: install the package for the profile's python, or ship the module in the code folder",
    ),
    (
        r"Address already in use|EADDRINUSE",
        "a port is taken: use MASTER_PORT from the environment, don't fix one in the program",
    ),
    (
        r"Timed out|timeout|DistStoreError|wait timeout",
        "a collective timed out: one rank was slow or gone; look at the other ranks' logs (orch logs RUN --all)",
    ),
    (r"\bnan\b|not a finite|Loss is nan", "the loss is not a number: lower the learning rate, or check the data"),
    (r"Permission denied", "a file may not be used by this user: check its owner and mode on that node"),
    (
        r"No such file or directory|FileNotFoundError",
        "a file is missing on that node: only the code folder and inputs are sent along",
    ),
)


def hint_for(words: str, code: int | None, signal: str | None) -> str:
    """One sentence of advice, or an empty string when no rule fits."""
    if code == 127:
        return "the command was not found on that node: check its name and PATH"
    if code == 126:
        return "the command can't be executed: check its mode and its first line"
    for pattern, advice in _RULES:
        if re.search(pattern, words, re.IGNORECASE):
            return advice
    if signal == "SIGKILL" or code == 137:
        return "somebody killed it with SIGKILL; when nobody did, the host ran out of memory (dmesg shows it)"
    if signal == "SIGBUS":
        return "shared memory is too small for the DataLoader: in a container set container.shm, or use fewer workers"
    if signal in ("SIGSEGV", "SIGABRT", "SIGILL"):
        return "native code crashed: faulthandler in the program (python -X faulthandler) shows where"
    return ""
