"""What files are hashed with, who decides it, and what a Python without blake3 says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol.checkpoints.checksum import (
    VARIABLE,
    Algorithm,
    Checksum,
    NotInstalledError,
    agreed,
    checksum_of,
    chosen,
    installed,
)

EMPTY = {
    Algorithm.SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    Algorithm.BLAKE3: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_files_have_the_checksums_that_others_give_them(tmp_path: Path, algorithm: Algorithm) -> None:
    path = tmp_path / "file"
    path.touch()
    checksum = checksum_of(path, algorithm)
    assert checksum == Checksum.of({str(algorithm): EMPTY[algorithm], "bytes": 0})
    assert checksum.is_of(path)
    path.write_bytes(b"x")
    assert not checksum.is_of(path)


def test_a_checksum_as_text_says_what_it_was_made_with_unless_it_is_sha256() -> None:
    assert str(Checksum(Algorithm.SHA256, "ab")) == "ab"
    assert str(Checksum(Algorithm.BLAKE3, "ab")) == "blake3:ab"


@pytest.mark.parametrize(
    "entry",
    [
        {}, {"bytes": 1}, {"md5": "0" * 64}, {"sha256": "0" * 63}, {"sha256": "../x"}, {"blake3": 3}, {"blake3": None},
        {"blake3": "G" * 64}, {"sha256": "0" * 64, "blake3": "0" * 64},
    ],
)  # fmt: skip
def test_an_entry_without_one_checksum_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no checksum that this version of orch knows"):
        Checksum.of(entry)


def test_blake3_is_agreed_on_only_where_all_have_it() -> None:
    has, lacks = ("sha256", "blake3"), ("sha256",)
    assert agreed([has, has]) is Algorithm.BLAKE3
    assert agreed([has, lacks]) is agreed([has, ()]) is Algorithm.SHA256


@pytest.mark.parametrize(
    ("environment", "algorithm"),
    [
        ({}, "blake3"),
        ({VARIABLE: "blake3", "ORCH_RUN_ID": "r"}, "blake3"),
        ({VARIABLE: "sha256", "ORCH_RUN_ID": "r"}, "sha256"),
        ({"ORCH_RUN_ID": "r"}, "sha256"),
        ({VARIABLE: "md5"}, "sha256"),
    ],
)
def test_a_rank_hashes_as_its_agent_says(environment: dict[str, str], algorithm: str) -> None:
    assert chosen(environment) == algorithm


def test_without_the_package_all_is_sha256_and_what_others_wrote_is_told_apart_from_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setitem(sys.modules, "blake3", None)
    assert installed() == (Algorithm.SHA256,)
    assert chosen({}) is chosen({VARIABLE: "blake3"}) is Algorithm.SHA256
    with pytest.raises(
        NotInstalledError, match="hashed with blake3, which this Python does not have: pip install blake3"
    ):
        Checksum(Algorithm.BLAKE3, EMPTY[Algorithm.BLAKE3]).is_of(path)
