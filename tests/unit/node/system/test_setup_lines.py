"""The profile's setup lines: the shell's own message reaches the verdict, and the launcher's reports stay apart."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator.node.system.setup_lines import after_setup, setup_failure


def run(*setup: str) -> subprocess.CompletedProcess[str]:
    """Run the lines as a node does, and then a program that reports to standard output."""
    argv = after_setup(setup, ["sh", "-c", 'echo "report $A"; readlink /proc/$$/fd/9 /proc/$$/fd/10'])
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("true", "nosuchmodule load cuda"), "setup line 2 failed: nosuchmodule load cuda: nosuchmodule: command not "),
        (("echo this is no report; false",), "setup line 1 failed: echo this is no report; false: this is no report"),
        (("exit 3",), "setup line 1 failed: exit 3"),
        (("if then",), "setup line 1 failed: if then: syntax error near unexpected token `then'"),
        (("echo two\nfalse",), "setup line 1 failed: echo two: two"),
    ],
)
def test_a_line_that_fails_is_named_with_the_shells_message(lines: tuple[str, ...], words: str) -> None:
    done = run(*lines)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert setup_failure(lines, done.stderr.splitlines()).startswith(words)


def test_lines_may_print_and_the_launcher_has_standard_output_for_itself() -> None:
    done = run("echo banner", "export A='x y'")
    assert (done.returncode, done.stdout, done.stderr) == (1, "report x y\n", "banner\n")


def test_a_launcher_that_ends_by_itself_is_no_failure_of_a_line() -> None:
    assert setup_failure(("true",), ["Traceback (most recent call last):", "ImportError: x"]) == ""
