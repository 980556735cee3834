"""Turns pydantic's errors into sentences with file:line:column and suggestions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orchestrator.errors import SpecError, printable
from orchestrator.specs.border import hints_of
from orchestrator.specs.documents.other_tools import ELSEWHERE, LAUNCHERS, OF_KIND, answer_to, as_mapping
from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.documents.yaml_source import Node, kind_of
from orchestrator.specs.job import Job
from orchestrator.specs.kinds import every, model_of
from orchestrator.specs.profile import ProfileBase
from orchestrator.specs.spec import Spec, names_of

MAX_PROBLEMS: Final = 10
IN_LISTS: Final = ("inputs", "hosts", "spares", "notify")
MAX_LENGTH: Final = 600
MOST_LISTED: Final = 12  # fields; if a model has more, only the nearest three are listed
# difflib's ratio from which two names count as similar, so that `epoks` suggests `training.epochs`
SIMILAR: Final = 0.7

_EXPECTED: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
    "none_required": "nothing (null)",
    "finite_number": "a finite number",
}

_PHRASES: Final = {
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "text that is not empty",
    "too_short": "a list of at least {min_length}",
    "string_pattern_mismatch": "text that matches {pattern}",
}

# The fields of the short forms `user@host:port` and `source:target`.
_SHORT_FORM_PARTS: Final = frozenset(("host", "user", "port", "source", "target"))


@dataclass(frozen=True)
class _Finding:
    """A pydantic error, and its path without the names of union branches."""

    path: tuple[str | int, ...]
    union: tuple[str | int, ...] | None
    error: ErrorDetails
    inside: str = ""

    @property
    def group(self) -> tuple[str | int, ...]:
        return self.path if self.union is None else self.union


def raise_problems(problems: Iterable[Problem], root: Node, name: str) -> None:
    """Raise one SpecError that lists the problems, one per line. If there are no problems, do nothing."""
    found = sorted(
        {(_sort_key(p, root), place(p, root, name), _sentence_at(p, place(p, root, name))) for p in problems}
    )
    if not found:
        return
    lines = [(where, text) for _, where, text in found]
    rest = [f"{where}: {text}" for where, text in lines[1:MAX_PROBLEMS]]
    if len(lines) > MAX_PROBLEMS:
        rest.append(f"and {len(lines) - MAX_PROBLEMS} more")
    raise SpecError(lines[0][0], "\n".join([lines[0][1], *rest]))


def _sentence_at(problem: Problem, where: str) -> str:
    """Return the problem's message. The field's name is left out if `where` already contains it, as in `job.name
    (command line)`.
    """
    named = where.endswith(f".{problem.dotted} (command line)") and not re.match(r"(is|belongs) ", problem.message)
    return sentence(replace(problem, path=()) if named else problem)


def sentence(problem: Problem) -> str:
    """Return the message with its field in front, in one line and without terminal escapes."""
    says = re.match(r"(is|belongs) ", problem.message)  # the message is a predicate of the field
    text = problem.message
    if problem.path:
        text = text.removeprefix(f"{problem.path[-1]}: ")  # a rule about a type may begin with the field's name
        text = f"'{problem.dotted}' {text}" if says else f"{problem.dotted}: {text}"
    shown = printable(text[:MAX_LENGTH], keep="")
    return shown if len(text) <= MAX_LENGTH else f"{shown}..."


def place(problem: Problem, root: Node, name: str) -> str:
    """Return file:line:column of a problem, or the command-line option that set the value."""
    node = root
    where = root.where or name
    for i, part in enumerate(problem.path):
        child = _child(node, part)
        if child is None:
            break
        last = i == len(problem.path) - 1
        where = child.key_where if last and problem.at_key and child.key_where else child.where
        node = child
    return where


def _sort_key(problem: Problem, root: Node) -> tuple[str, tuple[int, ...]]:
    name, *numbers = re.split(r":(?=\d+(?::\d+)?$)", place(problem, root, ""))
    return name, tuple(int(n) for part in numbers for n in part.split(":"))


def _child(node: Node, part: str | int) -> Node | None:
    if isinstance(node.value, list) and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    return node.get(str(part))


def explain(error: ValidationError, root: Node, model: type[Spec]) -> list[Problem]:
    """Return one problem for each place that pydantic reported. The errors of all members of a union are combined."""
    findings = [_locate(e, root) for e in error.errors(include_url=False)]
    paths = {f.path for f in findings}
    groups: dict[tuple[str | int, ...], list[_Finding]] = {}
    for finding in findings:
        follows = any(len(p) > len(finding.path) and p[: len(finding.path)] == finding.path for p in paths)
        if not (follows and finding.error["type"] == "too_short"):
            groups.setdefault(finding.group, []).append(finding)
    problems = [_problem(group, root, model) for group in groups.values()]
    suggested = {p.message.rpartition("did you mean '")[2][:-2] for p in problems if p.at_key}
    return [
        p for p in problems if not (p.message.startswith("is missing") and str(p.path[-1]) in suggested)
    ] or problems


def _locate(error: ErrorDetails, root: Node) -> _Finding:
    path: list[str | int] = []
    union: tuple[str | int, ...] | None = None
    node: Node | None = root
    inside = ""
    for i, part in enumerate(error["loc"]):
        child = _child(node, part) if node is not None else None
        if child is not None:
            path.append(part)
            node = child
        elif error["type"] == "missing" and i == len(error["loc"]) - 1:
            path.append(part)
        elif part in _SHORT_FORM_PARTS:
            inside = f"its {part}: "
        elif part != "[key]" and union is None:
            union = tuple(path)
    return _Finding(tuple(path), union, error, inside)


def _problem(group: list[_Finding], root: Node, model: type[Spec]) -> Problem:
    deepest = max(len(f.path) for f in group)
    telling = [f for f in group if len(f.path) == deepest]
    telling = [f for f in telling if f.error["type"] not in (*_EXPECTED, "literal_error")] or telling
    first = telling[0]
    kind = first.error["type"]
    at_key = kind == "unexpected_keyword_argument" or "[key]" in first.error["loc"]
    if kind == "unexpected_keyword_argument":
        return Problem(first.path, _unknown(first.path, model), at_key=True)
    if kind == "missing":
        return Problem(first.path, "is missing" + _described(first.path, model))
    if kind == "value_error":
        return _from_validator(first, root, at_key)
    node = _at(first.path, root)
    expected = " or ".join(dict.fromkeys(_expectation(f.error) for f in telling))
    message = f"{first.inside}expected {expected}, found {kind_of(node)}"
    return Problem(first.path, message + _hint(telling, node), at_key)


def _at(path: tuple[str | int, ...], root: Node) -> Node:
    node = root
    for part in path:
        node = _child(node, part) or node
    return node


def _from_validator(finding: _Finding, root: Node, at_key: bool) -> Problem:
    cause: Any = finding.error.get("ctx", {}).get("error")
    path = finding.path
    if isinstance(cause, ValidationError):  # a short form, such as host:port, was parsed into a model
        inner = cause.errors(include_url=False)[0]
        part = ".".join(str(p) for p in inner["loc"])
        return Problem(path, f"its {part}: {inner['msg'].removeprefix('Value error, ').lower()}", at_key)
    message = str(cause)
    if not path:  # a rule about several fields: report the first field that it names
        named = (word for word in re.findall(r"\w+", message) if root.get(word) is not None)
        return Problem((word,), message) if (word := next(named, "")) else Problem((), message)
    return Problem(path, message, at_key)


def _expectation(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    phrase = _PHRASES.get(kind) or _EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ")
    if kind == "dataclass_type" and context.get("class_name") in ("Host", "Mount"):
        phrase = "text or a mapping"
    return phrase.format(**context) if kind in _PHRASES else phrase


def _hint(findings: list[_Finding], node: Node) -> str:
    kinds = {f.error["type"] for f in findings}
    if kinds & {"string_type"} and isinstance(node.value, int | float):
        return "; put quotes around it to pass it as text"
    if kinds & {"tuple_type"} and len(kinds) == 1 and isinstance(node.value, str):
        return f"; write [{node.value}]" if re.fullmatch(r"[\w./@-]+", node.value) else "; put it in [ ]"
    if "literal_error" in kinds and isinstance(node.value, str):
        words = re.findall(r"'([^']*)'", " ".join(_expectation(f.error) for f in findings))
        if findings[0].path == ("launcher",) and node.value.lower() in LAUNCHERS:
            return "; leave it out: orch itself starts the ranks that this launcher would start"
        return did_you_mean(node.value, words)
    if kinds & {"dict_type", "dataclass_type"}:
        return as_mapping(findings[0].path, node.value)
    return ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar of the known words, or ""."""
    close = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def fields_at(path: tuple[str | int, ...], model: type[Spec]) -> type[Spec] | None:
    """Return the model at the end of a path of keys; None if no model has such a path."""
    current: type[Spec] | None = model
    for part in path:
        if isinstance(part, int):
            continue
        if current is None or part not in names_of(current):
            return None
        current = _spec_in(hints_of(current)[part])
    return current


def _spec_in(annotation: Any) -> type[Spec] | None:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return annotation
    return next((m for arg in get_args(annotation) if (m := _spec_in(arg))), None)


def _unknown(path: tuple[str | int, ...], model: type[Spec]) -> str:
    name = str(path[-1])
    holder = fields_at(path[:-1], model) or model
    same = name.lower().replace("-", "_")
    renamed = ELSEWHERE.get(same, same)
    if (here := renamed.removeprefix(".".join([*map(str, path[:-1]), ""]))) in names_of(holder):
        return f"is not a field; did you mean '{here}'?"
    if (kind := hints_of(holder).get("kind")) and (meant := OF_KIND.get((same, *get_args(kind)))):
        return f"is not a field; did you mean {meant}?"
    if answer := answer_to(same, of_job=model is Job):
        return f"is not a field{answer}"
    if found := _one_level_down(same, holder) or _other_document(same, renamed, model, top=len(path) == 1):
        return found
    if hint := did_you_mean(name, names_of(holder)):
        return f"is not a field{hint}"
    if found := _one_level_down(same, holder, SIMILAR):
        return found
    if len(names_of(holder)) <= MOST_LISTED:
        return f"is not a field; known here: {', '.join(names_of(holder))}"
    near = difflib.get_close_matches(same, names_of(holder), n=3, cutoff=0.0)
    return f"is not a field; the nearest are {', '.join(near)}; orch schema {'job' if model is Job else 'profile'}: all"


def near_field(dotted: str) -> str:
    """Return the field that the user probably meant, such as `job.training.lr` for learning_rate; empty if unknown."""
    name = dotted.lower().replace("-", "_")
    name = name.removeprefix("job.").removeprefix("profile.")
    known: dict[str, str] = {}
    models: list[tuple[str, type[Spec]]] = [("job", Job), *(("profile", model_of(each)) for each in every())]
    for document, model in models:
        known |= {path: f"{document}.{path}" for path in _paths(model) if path not in known}
    ends: dict[str, list[str]] = {}
    for path in known:
        ends.setdefault(path.rpartition(".")[2], []).append(path)
    renamed = ELSEWHERE.get(name, name)
    if renamed in known or _is_in_mapping(renamed):
        return known.get(renamed, f"job.{renamed}")
    if len(ends.get(name, ())) == 1:
        return known[ends[name][0]]
    near = difflib.get_close_matches(name, [*known, *(end for end in ends if len(ends[end]) == 1)], n=1, cutoff=0.75)
    return known.get(near[0]) or known[ends[near[0]][0]] if near else ""


def _paths(model: type[Spec]) -> Iterator[str]:
    """Yield the dotted fields of a document, two levels deep. Fields of list items are left out, because --set can't
    set them.
    """
    for key, hint in hints_of(model).items():
        yield key
        inner = _spec_in(hint)
        if inner is not None and key not in IN_LISTS:
            yield from (f"{key}.{name}" for name in names_of(inner))


def _is_in_mapping(dotted: str) -> bool:
    """Return True if the path names an environment variable or an option of the task, because these may have any
    name.
    """
    return bool(re.fullmatch(r"(env|training\.options)\.[^.]+", dotted))


def _one_level_down(name: str, holder: type[Spec], cutoff: float = 1.0) -> str:
    """Suggest a field of an inner model with a similar name; "" if there is none. `cutoff` is the least similarity,
    from 0 to 1.
    """
    below: dict[str, str] = {}
    for key, hint in hints_of(holder).items():
        inner = _spec_in(hint)
        if inner and key not in IN_LISTS:
            below = {**{field: f"{key}.{field}" for field in names_of(inner)}, **below}
    close = difflib.get_close_matches(name, below, n=1, cutoff=cutoff)
    return f"is not a field here; did you mean '{below[close[0]]}'?" if close else ""


def _other_document(written: str, name: str, model: type[Spec], *, top: bool) -> str:
    """Return an error message if an unknown field of a job belongs in a profile, if a field of a profile belongs in a
    job, or if it belongs in another kind of profile. Otherwise return "".
    """
    if not top:
        return ""
    if name.partition(".")[0] in names_of(Job):
        where = "belongs in the job, not the profile"
        return f"is not a field; did you mean '{name}'?" if model is Job else where
    if model is Job and name in names_of(ProfileBase):
        return "belongs in the profile, not the job" if name == written else f"belongs in the profile, as '{name}'"
    this = "job" if model is Job else "profile"
    kinds = [kind.name for kind in every() if name in names_of(model_of(kind))]
    return f"belongs in {' or '.join(kinds)} profiles, not in this {this}" if kinds else ""


def _described(path: tuple[str | int, ...], model: type[Spec]) -> str:
    holder = fields_at(path[:-1], model)
    said = [each.metadata.get("description") for each in fields(holder) if each.name == path[-1]] if holder else []
    return f": {said[0]}" if any(said) else ""
