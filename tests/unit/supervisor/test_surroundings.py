"""What a later start restores of its submit's process, and the words for what it can't."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from orchestrator.supervisor import surroundings
from orchestrator.supervisor.surroundings import UNLIMITED, restore


class Limits:
    """The limits of a process without privileges, which can lower a hard limit and never raise it."""

    def __init__(self, **known: tuple[int, int]) -> None:
        self.known = {surroundings.LIMITS[name]: each for name, each in known.items()}

    def get(self, number: int) -> tuple[int, int]:
        return self.known[number]

    def set(self, number: int, limits: tuple[int, int]) -> None:
        (soft, hard), most = ((each if each != UNLIMITED else 1 << 62) for each in limits), self.known[number][1]
        if soft > hard or hard > (most if most != UNLIMITED else 1 << 62):
            raise ValueError("not allowed to raise maximum limit")
        self.known[number] = limits


@pytest.mark.parametrize(
    ("now", "wanted", "then", "said"),
    [
        ((64, 128), (64, 128), (64, 128), []),
        ((64, 128), (100, 128), (100, 128), []),
        ((64, 128), (32, 32), (32, 32), []),
        ((UNLIMITED, UNLIMITED), (64, 128), (64, 128), []),
        ((64, 128), (100, 4096), (100, 128), []),
        ((64, 128), (256, 256), (128, 128), ["RLIMIT_NOFILE is 128 instead of 256"]),
        ((64, 128), (UNLIMITED, UNLIMITED), (128, 128), ["RLIMIT_NOFILE is 128 instead of unlimited"]),
    ],
)
def test_a_limit_is_restored_as_far_as_the_hard_limit_permits(
    monkeypatch: pytest.MonkeyPatch,
    now: tuple[int, int],
    wanted: tuple[int, int],
    then: tuple[int, int],
    said: list[str],
) -> None:
    limits = Limits(RLIMIT_NOFILE=now)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    kept = json.loads(json.dumps({"limits": {"RLIMIT_NOFILE": wanted, "RLIMIT_OF_ANOTHER_SYSTEM": (1, 1)}}))
    assert restore(kept) == said
    assert limits.get(resource.RLIMIT_NOFILE) == then


def test_what_is_kept_has_no_secret_and_the_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "canary")
    monkeypatch.chdir(tmp_path)
    kept = json.loads(json.dumps(surroundings.surroundings({"TOKEN": "canary"})))
    assert "canary" not in json.dumps(kept)
    assert (kept["folder"], kept["environment"]["PATH"]) == (str(tmp_path), os.environ["PATH"])
    assert restore(kept) == []
    assert restore({"folder": f"{tmp_path}/gone"}) == [
        f"the folder {tmp_path}/gone can't be entered: No such file or directory"
    ]
