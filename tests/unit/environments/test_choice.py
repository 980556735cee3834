"""What is chosen of a lock for an interpreter, and what is refused, by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.environments.choice import Choice, NoChoiceError, choose
from orchestrator.environments.interpreter import Interpreter
from orchestrator.environments.lock import Lock, hashes_of, read_lock
from orchestrator.errors import UsageError
from orchestrator.node.environments.interpreters import ask
from orchestrator.specs.python_environment import PythonEnvironment

ONE, TWO = "1" * 64, "2" * 64
HEAD = 'lock-version = "1.0"\ncreated-by = "tests"\n'
LOCK = Lock("pylock.toml", "", "", "/code")


@pytest.fixture(scope="module")
def here() -> Interpreter:
    found = Interpreter.of(ask(sys.executable))
    markers = {**found.markers, "python_version": "3.11", "python_full_version": "3.11.2"}
    return replace(found, version="3.11.2", platform="linux-x86_64", libc="glibc 2.36", markers=markers)


def package(name: str, *files: str, **values: str) -> str:
    rows = [f'{{ url = "https://x.invalid/{file}", hashes = {{ sha256 = "{ONE}" }} }}' for file in files]
    more = "".join(f"{key} = '{value}'\n" for key, value in values.items())
    return f'[[packages]]\nname = "{name}"\nversion = "1.0"\n{more}wheels = [{", ".join(rows)}]\n'


def chosen(
    here: Interpreter, text: str, lock: Lock = LOCK, allowed: Mapping[str, frozenset[str]] | None = None
) -> tuple[Choice, ...]:
    return choose(lock, HEAD + text, here, allowed or {})


def test_the_best_wheel_of_a_package_is_chosen_by_name(here: Interpreter) -> None:
    plain, built = "beta-1.0-py3-none-any.whl", "beta-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    found = chosen(here, package("beta", plain, built, "beta-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"))
    assert found == (Choice("beta", "1.0", built, ONE, f"https://x.invalid/{built}"),)
    assert found[0].requirement == f"beta==1.0 --hash=sha256:{ONE}"


def test_markers_leave_packages_out(here: Interpreter) -> None:
    text = package("win", "win-1.0-cp311-cp311-win_amd64.whl", marker='sys_platform == "win32"')
    assert chosen(here, text) == ()


def test_each_package_without_a_wheel_is_named(here: Interpreter) -> None:
    text = package("one", "one-1.0-cp312-cp312-manylinux_2_17_x86_64.whl") + package(
        "two", "two-1.0-cp311-cp311-manylinux_2_39_x86_64.whl"
    )
    with pytest.raises(NoChoiceError) as refused:
        chosen(here, text)
    assert "one 1.0 has no wheel for this Python and platform, only one-1.0-cp312" in str(refused.value)
    assert "two 1.0 has no wheel for this Python and platform, only two-1.0-cp311" in str(refused.value)


def test_no_other_file_is_taken_than_the_hashes_allow(here: Interpreter) -> None:
    text = package("one", "one-1.0-py3-none-any.whl")
    assert len(chosen(here, text, allowed={"one": frozenset({ONE, TWO})})) == 1
    with pytest.raises(NoChoiceError, match="none of its files has a hash that is in the lock"):
        chosen(here, text, allowed={"one": frozenset({TWO})})
    with pytest.raises(NoChoiceError, match=r"one 1\.0 is needed, but the lock has no hash for it"):
        chosen(here, text, allowed={"other": frozenset({TWO})})


def test_what_stays_visible_in_the_lock_s_version_is_not_chosen(here: Interpreter) -> None:
    text = package("torch", "torch-1.0-cp39-cp39-win_amd64.whl") + package("one", "one-1.0-py3-none-any.whl")
    over = replace(here, packages=(("Torch", "1.0+cu124.site"), ("one", "0.9")))
    assert [each.name for each in chosen(over, text)] == ["one"]


def test_a_repository_is_refused(here: Interpreter) -> None:
    text = '[[packages]]\nname = "one"\nvcs = { type = "git", url = "https://x.invalid/one", commit-id = "abc" }\n'
    with pytest.raises(NoChoiceError, match="one comes from a folder or a repository"):
        chosen(here, text)


def test_a_path_is_the_lock_s_folder_s(here: Interpreter) -> None:
    wheel = f'{{ path = "wheels/one-1.0-py3-none-any.whl", hashes = {{ sha256 = "{ONE}" }} }}'
    (found,) = chosen(here, f'[[packages]]\nname = "one"\nversion = "1.0"\nwheels = [{wheel}]\n')
    assert found.url == "file:///code/wheels/one-1.0-py3-none-any.whl"


def test_the_hashes_of_a_requirements_file_are_read_over_its_lines() -> None:
    text = (
        f"# made\n--index-url https://x.invalid\nOne_Two==1.0 ; python_version > '3' \\\n    --hash=sha256:{ONE} \\\n"
    )
    text += f"    --hash=sha256:{TWO}  # via three\nfour @ https://x.invalid/four-1.0-py3-none-any.whl\n"
    found = hashes_of(Lock("requirements.txt", text, "", ""), "requirements.txt")
    assert found == {"one-two": frozenset({ONE, TWO}), "four": frozenset()}


def test_a_lock_outside_of_the_code_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "code" / "link.txt").symlink_to(tmp_path / "notes.txt")
    for name in ("../notes.txt", str(tmp_path / "notes.txt"), "link.txt"):
        with pytest.raises(UsageError, match="outside the code folder"):
            read_lock(PythonEnvironment(lock=name), tmp_path / "code")


BAD: dict[str, tuple[str, Any, str]] = {
    "absent": ("uv.lock", None, "the lock can't be read"),
    "no TOML": ("pylock.toml", b"what", "is not a valid pylock.toml"),
    "no pylock": ("pylock.toml", b"a = 1", "is not a valid pylock.toml"),
    "no text": ("requirements.txt", b"\xff\xfe", "is not UTF-8 text"),
    "no uv.lock": ("uv.lock", b"what", "uv can't read the lock"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_lock_is_refused_with_its_path(name: str, tmp_path: Path) -> None:
    file, content, words = BAD[name]
    if content is not None:
        (tmp_path / file).write_bytes(content)
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.9"\n')
    with pytest.raises(UsageError) as refused:
        read_lock(PythonEnvironment(lock=file), tmp_path)
    assert words in refused.value.message
    assert str(tmp_path / file) in refused.value.message
