"""Patterns match the same paths as in git, which is the judge here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.protocol.outputs import Matcher, OutputRules
from orchestrator.protocol.patterns import problem_of
from orchestrator.runs.files.ignore_rules import Rules

NAMES = st.text("ab.", min_size=1, max_size=3).filter(lambda name: set(name) != {"."})
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = st.sampled_from([
    "a", "b", "*", "**", "***", "?", "[ab]", "[!a]", "[]a]", "a*", "*.b", "ab", "?b*", "a**b", "\\a",
])  # fmt: skip
PATTERNS = st.builds(
    lambda lifts, top, parts, folder: f"{lifts}{top}{'/'.join(parts)}{folder}",
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(PARTS, min_size=1, max_size=3),
    st.sampled_from(["", "/"]),
)
LINES = PATTERNS | st.sampled_from(["# a", "\\#a", "", "/", "  ", "a  ", "a\\ ", "a\\  ", "//", "a//b", " a", "\\!a"])


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository without files."""
    folder = tmp_path_factory.mktemp("git")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


def git_ignores(folder: Path, lines: list[str], path: str) -> bool:
    """Tell whether git ignores a file at this path, or a folder above it."""
    (folder / ".gitignore").write_text("".join(f"{line}\n" for line in lines))
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    asked = ["git", "-C", folder, "check-ignore", "--no-index", "--quiet", "--", path]
    return subprocess.run(asked, env=environ, check=False).returncode == 0


@settings(max_examples=200)
@given(lines=st.lists(LINES, max_size=4), path=PATHS)
@example(lines=["*.b", "!a/"], path="a/b.b")
@example(lines=["/a/*", "!/a/b/"], path="a/b/a")
@example(lines=["**/**"], path="a/b")
@example(lines=["a/***/b"], path="a/x/y/b")
@example(lines=["a/**"], path="a")
@example(lines=["/**/a"], path="a")
def test_an_ignore_file_is_read_as_git_reads_it(git: Path, lines: list[str], path: str) -> None:
    expected = git_ignores(git, lines, path)
    assert bool(Rules.of(git, ".orchignore").why_left_out(path)) == expected


@given(patterns=st.lists(PATTERNS.filter(lambda pattern: pattern[0] != "!"), min_size=1, max_size=3), path=PATHS)
def test_include_takes_what_it_names_and_what_is_in_folders_that_it_names(
    git: Path, patterns: list[str], path: str
) -> None:
    matcher = Matcher(OutputRules(include=tuple(patterns)), built_in=False)
    assert matcher.takes(path) == git_ignores(git, patterns, path)


def test_a_pattern_that_names_nothing_or_can_not_be_read_is_said_to() -> None:
    assert problem_of("!/") == "names nothing"
    assert "can't be read" in str(problem_of("a[b-a]"))
    assert problem_of("a\\") == "can't be read: it ends with a backslash"
    assert problem_of("[a") is None  # a bracket that is not closed is a bracket
