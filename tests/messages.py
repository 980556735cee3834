"""All texts that orch prints when something is wrong, collected from its source: errors, hints, notes, and help.

`make messages` writes them to tests/golden/messages.txt, which somebody can read from end to end. A value in a text
stands in braces. tests/unit/test_hints.py checks the commands, options and fields that these texts name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orchestrator

SOURCES = Path(orchestrator.__file__).parent
LIST = Path(__file__).parent / "golden" / "messages.txt"
PRINTS = {"say", "note"}
HINT_OF_RULE = {"Rule": 3, "_says": 1, "_gpu": 2}  # the place of a hint among the arguments of a rule of `outcome`
HELP = {"setting", "option", "argument", "add_argument", "add", "command", "ArgumentParser"}
CALLED_HINT = re.compile(
    r"hint|remed|refusals|after_dashes|note|no_slurm|elsewhere|(?<![a-z])_rules|left_early", re.IGNORECASE
)
RETURNS_HINT = re.compile(r"hint|note_on|notes_on|remedy")
EXPRESSION = re.compile(r"\\[dSwsb.]|\.\*|\w\|\w")  # a regular expression, which stands beside a hint


class Message(NamedTuple):
    """One text: the file and line of the statement that holds it, its kind, and the text."""

    file: str
    line: int
    kind: str  # error, hint, check (of the doctor), note or help
    text: str


def text_of(node: ast.AST) -> str | None:
    """The text of a literal, of an f-string, or of a sum of such; None for any other expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else _value(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = text_of(left), text_of(right)
            return None if None in texts else f"{texts[0]}{texts[1]}"
    return None


def _value(part: ast.AST) -> str:
    """A value in an f-string: its expression in braces."""
    expression = part.value if isinstance(part, ast.FormattedValue) else part
    return "{" + re.sub(r"[{}\n]", "", ast.unparse(expression)) + "}"


def texts_in(node: ast.AST) -> Iterator[str]:
    """All texts in an expression; a sum of texts is one text."""
    if (text := text_of(node)) is not None:
        yield text
    else:
        is_rule = isinstance(node, ast.Tuple) and len(node.elts) == 3 and all(map(text_of, node.elts))
        for child in list(ast.iter_child_nodes(node))[is_rule:]:  # a rule begins with the words of another program
            yield from texts_in(child)


def messages(folder: Path = SOURCES) -> list[Message]:
    """All texts of the files below a folder, in the order of files and lines."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            found += [
                Message(str(path.relative_to(folder)), at, kind, text)
                for at, kind, value in _parts(node)
                for text in texts_in(value)
            ]
    return sorted(dict.fromkeys(found), key=lambda each: each[:2])


def _parts(node: ast.AST) -> Iterator[tuple[int, str, ast.AST]]:
    """The expressions in a statement that hold messages: line, kind, expression."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            if name.endswith("Error") or name == "CheckResult":
                first = "check" if name == "CheckResult" else "error"  # a check has a level and what was found
                for place, argument in enumerate(node.args):
                    yield node.lineno, "hint" if place > (first == "check") else first, argument
                yield from ((node.lineno, "hint", each.value) for each in node.keywords)
            elif name in PRINTS:
                yield from ((node.lineno, "note", argument) for argument in node.args)
            elif name in HINT_OF_RULE:
                yield from ((node.lineno, "hint", each) for each in node.args[HINT_OF_RULE[name] :][:1])
                yield from ((node.lineno, "hint", each.value) for each in node.keywords if each.arg == "hint")
            elif name in HELP:
                yield from ((node.lineno, "help", each) for each in _helps(name, node))
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            if CALLED_HINT.search(ast.unparse(target)):
                yield node.lineno, "hint", value
        case ast.FunctionDef(name=name) if RETURNS_HINT.search(name):
            yield from (
                (each.lineno, "hint", each.value)
                for each in ast.walk(node)
                if isinstance(each, ast.Return) and each.value
            )
        case ast.AugAssign(target=target, value=value) if CALLED_HINT.search(ast.unparse(target)):
            yield node.lineno, "hint", value
        case ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str()) as text), *_], decorator_list=decorators):
            if any(".command(" in ast.unparse(each) for each in decorators):
                yield node.lineno, "help", text


def _helps(name: str, node: ast.Call) -> list[ast.expr]:
    """The help texts in a call. A field of a document, or a training option, shows its two texts as one."""
    words = ("help", "epilog", "description", "short_help", "more")
    texts = [each.value for each in node.keywords if each.arg in words]
    if name == "setting":
        return [ast.Constant("; ".join(filter(None, map(text_of, [*node.args, *texts]))))]
    return texts


def listed() -> str:
    """The list as tests/golden/messages.txt has it: for each file its texts, without line numbers."""
    lines: list[str] = []
    file = ""
    for message in messages():
        text = re.sub(r"\s+", " ", message.text).strip()
        if not re.search(r"\w .*\w", text) or EXPRESSION.search(text):
            continue
        if message.file != file:
            file = message.file
            lines += ["", f"# {file}"]
        if (line := f"{message.kind:<6} {text}") not in lines[-20:]:
            lines.append(line)
    return "\n".join(lines[1:]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        LIST.write_text(listed())
    else:
        sys.stdout.write(listed())
