"""A hint never leads to another error: the commands, options and fields that hints name are there, and can be typed.

Hints are collected from the source by tests/messages.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.specs.job import Job
from orchestrator.specs.pbs_profile import PbsProfile
from orchestrator.specs.profile import LocalProfile, SshProfile
from orchestrator.specs.sge_profile import SgeProfile
from orchestrator.specs.slurm_profile import SlurmProfile
from orchestrator.specs.spec import names_of
from tests.messages import LIST, listed, messages
from tests.unit.test_docs import ALL_OPTIONS, EVERY, misuse, options_of

# Where a command in prose ends, as in `orch status lists them`, `orch rm RUN..., or ...`.
END = re.compile(
    r"[;,()'\"]|\. |\n|: |  | (?:lists?|shows?|brings?|starts|takes|writes|saves|says|has|keeps|reads?|and|or|to|with"
    r"|which|for|where|refreshes|copies|needs|on|prints|works)\b|$"
)
FOREIGN = re.compile(
    r"\b(ssh|ssh-keygen|ssh-keyscan|sinfo|sbatch|srun|squeue|scontrol|sacctmgr|pip|uv|chmod|docker|podman|nvidia-smi|tar)\b"
)
FIELDS = {
    name for model in (Job, LocalProfile, SshProfile, SlurmProfile, SgeProfile, PbsProfile) for name in names_of(model)
} | {"addr"}


def hints() -> Iterator[tuple[str, str]]:
    """(file:line, text) of each message that is not one of the training's, with X for every value in it."""
    for each in messages():
        if each.kind != "help" and not each.file.startswith("training/"):
            yield f"{each.file}:{each.line}", re.sub(r"\{[^{}]*\}", "X", each.text)


HINTS = sorted(set(hints()))


def commands_in(text: str) -> list[str]:
    """The commands that a hint names: `orch rm RUN...` of `orch rm RUN..., or orch rm --keep 50`."""
    found = []
    for match in re.finditer(r"(?<![\w/.'-])(?<!this )orch (?=[a-z]+\b)", text):
        rest = text[match.end() :]
        end = END.search(rest)
        words = rest[: end.start() if end else None].split()
        is_command = words[0] in EVERY or (len(words) > 1 and re.match(r"--|[A-Z]", words[1]))
        if is_command:  # what else follows the name is prose: orch starts the ranks
            found.append("orch " + " ".join(word.removesuffix("...") for word in words))
    return found


def test_commands_are_found_in_prose() -> None:
    assert commands_in("orch rm RUN..., or orch rm --keep 50") == ["orch rm RUN", "orch rm --keep 50"]
    assert commands_in("orch status lists them; orch starts its ranks") == ["orch status"]
    assert commands_in("as orch frobnicate --now does") == ["orch frobnicate --now does"]
    assert misuse("orch frobnicate --now does")
    assert len([text for _, text in HINTS if commands_in(text)]) > 30


@pytest.mark.parametrize(("place", "hint"), [each for each in HINTS if commands_in(each[1])])
def test_each_command_of_a_hint_can_be_typed(place: str, hint: str) -> None:
    refused = {line: why for line in commands_in(hint) if (why := misuse(line)) and "Missing" not in why}
    assert refused == {}, place


def test_each_option_that_a_hint_names_is_there() -> None:
    named = {(option, place) for place, hint in HINTS if not FOREIGN.search(hint)
             for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", hint)}  # fmt: skip
    # Of a job's own program, of a requirements file, and of a launch line that is told back.
    others = {
        "--lr",
        "--hash",
        "--epochs",
        "--nproc_per_node",
        "--nproc",
        "--include",
        "--exclude",
        "--hostfile",
        "--num",
        "--ntasks-per-node",
        "--config",
    }
    assert {(option, place) for option, place in named if option not in ALL_OPTIONS | others} == set()
    assert len(named) > 15


def test_each_field_that_a_hint_says_to_set_is_there() -> None:
    named = {(field, place) for place, hint in HINTS for field in re.findall(r"\bset ([a-z_]+):? (?!to\b)", hint)}
    named |= {(field, place) for place, hint in HINTS for field in re.findall(r"\bset `?([a-z_]+)(?:: |`)", hint)}
    prose = {"another", "it", "the", "by", "this", "these", "a", "at", "them", "up", "with", "one", "in"}
    assert {(field, place) for field, place in named if field not in FIELDS | prose} == set()
    assert len(named) > 10


def test_options_of_a_command_are_known() -> None:
    assert {"--rank", "--here"} <= options_of(EVERY["replay"])


def test_the_list_of_messages_is_up_to_date() -> None:
    assert LIST.read_text() == listed(), "run `make messages`, and read what has changed"


def test_texts_are_found_in_each_kind_of_statement(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "def f(x, wrong):\n    hint = 'see ' + f'{x}'\n    say('it is over')\n"
        "    raise UsageError(f'{x} is wrong', 'try another' if wrong else 'leave it out')\n"
        "def hint_of(x):\n    return 'set python:'\n"
    )
    assert [each[2:] for each in messages(tmp_path)] == [
        ("hint", "see {x}"),
        ("note", "it is over"),
        ("error", "{x} is wrong"),
        ("hint", "try another"),
        ("hint", "leave it out"),
        ("hint", "set python:"),
    ]
