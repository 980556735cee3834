"""The tables of training options in docs/job.md and docs/training.md, from the table of `protocol/training_options.py`.

`make options` writes them; tests/unit/cli/test_pages.py checks that they are current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from orchestrator.protocol.frozen import default_of
from orchestrator.protocol.training_options import NOT_TAKEN, STRATEGIES, TrainingOptions
from orchestrator.training.options import description_of

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(?<=<!-- written by make options -->\n).*?(?=<!-- end -->)", re.DOTALL)
TYPES = {bool: "true or false", int: "number", float: "number", str: "text"}


def table(page: str) -> str:
    """Return the table of a page."""
    rows = list(_in_job() if page == "job" else _on_command_line())
    head = ("field", "type", "default", "meaning") if page == "job" else ("option", "default", "meaning")
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def _in_job() -> Iterator[tuple[str, ...]]:
    hints = get_type_hints(TrainingOptions)
    for each in fields(TrainingOptions):
        yield f"`training.{each.name}`", _type(hints[each.name], each), _default(each), each.metadata["description"]


def _on_command_line() -> Iterator[tuple[str, ...]]:
    hints = get_type_hints(TrainingOptions)
    for each in fields(TrainingOptions):
        name = "option" if each.name == "options" else each.name.replace("_", "-")
        words = _words(hints[each.name])
        if hints[each.name] is bool:
            flag = f"`--no-{name}`" if each.default else f"`--{name}`"
        elif words and int not in get_args(hints[each.name]):
            flag = f"`--{name}` {', '.join(f'`{word}`' for word in words if word != each.default)}"
        else:
            flag = f"`--{name} {each.metadata.get('unit', 'N')}`"
        yield flag, _default(each).replace("`", ""), description_of(each) + _not_for(each.name)


def _type(hint: Any, each: Field[Any]) -> str:
    if each.default_factory is dict:
        return "mapping"
    words = [f"`{word}`" for word in _words(hint)]
    kinds = [TYPES[kind] for kind in (hint, *get_args(hint)) if kind in TYPES]
    bound = f" from {each.metadata['least']}" if "least" in each.metadata else ""
    bound = f" above {each.metadata['above']}" if "above" in each.metadata else bound
    return ", ".join([*words, *kinds]) + bound


def _words(hint: Any) -> list[str]:
    return [word for part in (hint, *get_args(hint)) if get_origin(part) is Literal for word in get_args(part)]


def _default(each: Field[Any]) -> str:
    default = default_of(each)
    if "unset" in each.metadata:
        return str(each.metadata["unset"])
    if default is MISSING:
        return "required"
    if default is None or default == {}:
        return ""
    return (
        str(default).lower()
        if isinstance(default, bool)
        else f"`{default}`"
        if isinstance(default, str)
        else str(default)
    )


def _not_for(name: str) -> str:
    """Return which strategies don't take an option; empty if its description begins with the only one that does."""
    without = [strategy for strategy in STRATEGIES if strategy in NOT_TAKEN.get(name, {})]
    return f"; not for {', '.join(without)}" if 0 < len(without) < len(STRATEGIES) - 2 else ""


def with_table(page: str) -> tuple[str, str]:
    """Return (the text of docs/PAGE.md, the same with its table as it should be)."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return text, PLACE.sub(lambda _: table(page), text)


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    for name in ("job", "training"):
        (ROOT / "docs" / f"{name}.md").write_text(with_table(name)[1])
