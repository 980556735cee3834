"""The minimum versions of packages have the fixes of known vulnerabilities."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
FIXED = {
    "cryptography": "42.0.4",  # CVE-2024-26130: a crash of PKCS#12
    "h11": "0.16.0",  # CVE-2025-43859: chunked bodies that smuggle a request
    "paramiko": "3.4.0",  # CVE-2023-48795: Terrapin
    "starlette": "0.49.1",  # CVE-2025-62727: quadratic time for a Range header
    "uv": "0.9.6",  # GHSA-w476-p2h3-79g9 (0.9.5) and GHSA-pqhf-p39g-3x64 (0.9.6): archives that tools read differently
}


@pytest.mark.parametrize(("name", "fixed"), FIXED.items())
def test_a_minimum_version_has_the_fixes_of_its_package(name: str, fixed: str) -> None:
    named = map(Requirement, [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["ui"]])
    (wanted,) = (each.specifier for each in named if each.name == name)
    assert min(Version(each.version) for each in wanted if each.operator == ">=") >= Version(fixed)
