"""The verbs of node.pyz and of its server are declared once, and each one leads to a function."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module

import pytest

from orchestrator.node.__main__ import VERBS, main
from orchestrator.protocol.answers import ANSWERS


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_of_the_archive_takes_its_words(verb: str) -> None:
    place, words = VERBS[verb]
    module, _, function = place.partition(":")
    run = getattr(import_module(f"orchestrator.node.{module}"), function)
    assert {each.annotation for each in inspect.signature(run).parameters.values()} <= {"str"}
    inspect.signature(run).bind(*words.split())


@pytest.mark.parametrize("argv", [[], ["no-such-verb"], ["agent"], ["serve", "more"]])
def test_other_words_print_the_verbs(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["node.pyz", *argv])
    monkeypatch.setattr("orchestrator.node.__main__.hold_umask", lambda: None)
    assert main() == 2
    assert capsys.readouterr().err.startswith("usage: orchestrator.node agent TASK | slurm RUN_DIR | starts ")


@pytest.mark.parametrize("module", ANSWERS)
def test_a_modules_requests_are_those_whose_answers_are_declared(module: str) -> None:
    functions = inspect.getmembers(import_module(f"orchestrator.node.server.{module}"), inspect.isfunction)
    public = {name for name, function in functions if not name.startswith("_")}
    answering = {name for name, function in functions if function.__annotations__.get("return") == "Answer"}
    assert set(ANSWERS[module]) == answering & public
