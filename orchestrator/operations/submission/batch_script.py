"""Converts a batch or shell script of a small, closed grammar into a launch line, and refuses every other script.

docs/from-sbatch.md describes the grammar. The values of variables are those that the file itself or its #SBATCH lines
decide. A value that only a shell on the cluster could tell may occur where orch sets the value itself (the rendezvous),
and is refused in all other places.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.operations.submission.launch_line import Pasted, is_launcher, read_words, srun_options, words
from orchestrator.operations.submission.launcher_files import LauncherFiles
from orchestrator.operations.submission.shell_words import (
    END,
    UNKNOWN,
    Command,
    Part,
    Word,
    commands_of,
    is_literal,
    refused,
    words_of,
)
from orchestrator.specs.batch_header import Header, header_of
from orchestrator.specs.environment import set_by_orch
from orchestrator.specs.launchers import SHELLS
from orchestrator.specs.wrappers import ASSIGNMENT, program_of

_SYNTAX: Final = words(
    "if then else elif fi for while until do done case esac select function { } [ [[ ! trap shift getopts read alias "
    "coproc local return break continue cd pushd popd"
)
_PRINTS: Final = words("echo printf date hostname pwd nvidia-smi env printenv which true : sleep cat ls wait")
_SETUP: Final = words("module ml source . conda mamba micromamba ulimit umask spack unset mkdir")
_EXPORTS: Final = ("export", "declare", "typeset", "readonly")
_SETS: Final = re.compile(r"set|[-+][euxo]+|pipefail|errexit|nounset|xtrace")
_HOOK: Final = re.compile(r"\$\((?:conda|mamba|micromamba) [^()`]*\)")
_CONDA_HOOK: Final = 'eval "$(conda shell.bash hook)"'
_MARKED: Final = re.compile(f"{UNKNOWN}([^{END}]*){END}")
_EXPANDED_NAMES: Final = re.compile(r"[*?]|\{[^{}]*(?:,|\.\.)[^{}]*\}")
# A shell on any node of the job has the same values of these variables.
_OF_THE_JOB: Final = re.compile(r"\$\{?(?!SLURM_|\d)([A-Za-z_]\w*|SLURM_JOB_?ID)\}?")
_SRUN_CORES: Final = "SRUN_CPUS_PER_TASK"  # a copy of the header's --cpus-per-task for srun
_NUMBERS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
MOST_FILES: Final = 5  # scripts that call each other


class NoTrainingError(UsageError):
    """Raised for a script in which no line starts a training."""


@dataclass
class _Result:
    """The parts of a script and of the scripts that it calls, collected while their commands are read in order."""

    header: Header
    files: LauncherFiles
    setup: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)  # the lines that only print
    notes: list[str] = field(default_factory=list)
    launch: tuple[int, list[str]] | None = None
    in_background: int = 0  # the line that starts the program with `&`


def read_script(text: str, files: LauncherFiles) -> Pasted:
    """Return the launch line of a script.

    Raises NoTrainingError if no line of the script starts a training program, and NotConvertibleError, with the line,
    if the script is not in the grammar.
    """
    if odd := next((sign for sign in (UNKNOWN, END, "\0") if sign in text), ""):
        raise refused(text.count("\n", 0, text.index(odd)) + 1, f"the character {odd!r} is not text")
    header = header_of(text)
    result = _Result(header, files)
    _Scope(result, dict(header.variables())).read(text)
    if result.launch is None:
        hint = "it needs a line that begins with srun, torchrun, accelerate, deepspeed or python"
        raise NoTrainingError("the script starts no training that can be read", hint)
    line, launch = result.launch
    if result.in_background and header.options:
        raise refused(result.in_background, "the program is started with '&', and no `wait` follows")
    options = header.for_conversion() if header.options else None
    try:
        pasted = read_words(launch, files, options)
    except UsageError as error:
        raise refused(line, error.message.replace(UNKNOWN, "").replace(END, ""), error.hint or "") from None
    kept = [*pasted.args, *pasted.env.values(), pasted.target, pasted.python or "", *(pasted.slurm or {}).values()]
    _check_known(kept, line)
    pasted.env = {**result.env, **pasted.env}
    pasted.setup = [*result.setup, *pasted.setup]
    if result.left_out:
        lines = ", ".join(map(str, dict.fromkeys(result.left_out)))
        pasted.notes.append(f"left out, because orch keeps the log and these lines only print: {lines}")
    pasted.notes = [*result.notes, *pasted.notes]
    return pasted


def _check_known(values: Iterable[str], line: int) -> None:
    """Raise NotConvertibleError if a value has a part that only a shell on the cluster could tell."""
    for value in values:
        if found := _MARKED.search(value):
            raise refused(line, f"only a shell in the job could tell {found[1]}, and orch starts programs without one")


@dataclass
class _Scope:
    """Reads one script: the file itself, or a script or `bash -c` text that the file calls."""

    result: _Result
    variables: dict[str, str | tuple[str, ...]]
    arguments: tuple[str, ...] = ()
    exported: set[str] = field(default_factory=set)
    depth: int = 0

    def read(self, text: str, line: int = 1) -> None:
        """Read the commands of a script."""
        pipes = False
        for each_command in commands_of(text, line):
            command = each_command if self.depth else self._without_arguments(each_command)
            words = [word for each in command.words for word in self.expand(each, command)]
            if pipes:
                if words[:1] != ["tee"]:
                    raise refused(command.line, f"a pipe into '{' '.join(words[:1])}' is not converted")
                pipes = command.end == "|"
                continue
            is_launch = self._command(command, words)
            if command.end in ("|", "||") and not (is_launch and command.end == "|"):
                raise refused(command.line, f"'{command.end}' is not converted: {command.source[:60]}")
            pipes = command.end == "|"
            if command.end == "&":
                if not is_launch:
                    raise refused(command.line, f"'&' is not converted: {command.source[:60]}")
                self.result.in_background = command.line

    def _without_arguments(self, command: Command) -> Command:
        """Return a command without a last word `"$@"`: sbatch or bash get these arguments, and orch submit too."""
        last = [part.text for part in command.words[-1] if part.raw] if command.words else []
        if last != ["@"]:
            return command
        self.result.notes.append('"$@": give the arguments of the file to orch submit, after --')
        return replace(command, words=command.words[:-1])

    def _command(self, command: Command, words: list[str]) -> bool:
        """Read one command. Return True if it is the launch line."""
        line, first = command.line, is_literal(command.words[0]) if command.words else ""
        program = program_of(words)
        head = PurePosixPath(program[0]).name if program else ""
        if first in _SYNTAX or head in _SYNTAX:
            if head == "cd" and [each.raw for each in command.words[-1]][-1:] == ["$SLURM_SUBMIT_DIR"]:
                return False  # the ranks start in the copy of this folder
            raise refused(line, f"'{first or head}' is not converted: only plain commands and one launch line are")
        if first in _EXPORTS or not program:
            self._assign(command, exports=first == "export" or (first == "declare" and "-x" in words))
        elif head == "set" and all(map(_SETS.fullmatch, words)):
            return False
        elif head == "eval" and not _HOOK.search(command.source):
            self._nested(" ".join(words[1:]), command, self.arguments)
        elif self._is_launch(program):
            return self._launch(command, words)
        elif head == "srun":
            self._around(command, program_of(srun_options(program[1:])[1]), ())
        else:
            self._around(command, program, command.words)
        return False

    def _around(self, command: Command, program: list[str], setup: Sequence[Word]) -> None:
        """Read a command that is no launch line: it prints, or it sets up the environment."""
        head, line = PurePosixPath(program[0]).name if program else "", command.line
        if head == "wait":
            self.result.in_background = 0
        elif (head in _PRINTS and (head != "scontrol" or program[1:2] == ["show"])) or program[1:] in (
            ["--version"],
            ["-V"],
        ):
            if command.redirections and not all(each.startswith(("2>", "&>")) for each in command.redirections):
                raise refused(line, f"'{command.source[:60]}' writes a file and is not converted")
            self.result.left_out.append(line)
        elif head == "exit" and self.result.launch is not None:
            return
        elif self.result.launch is not None:
            raise refused(line, f"'{command.source[:60]}' would run after the program, and a job starts one program")
        elif head in _SETUP or (head == "eval" and program):
            self._check_include(head, program, line)
            if head in ("conda", "mamba") and program[1:2] == ["activate"]:
                self.result.setup += [] if any("conda" in each for each in self.result.setup) else [_CONDA_HOOK]
            text = " ".join(self._rendered(word, line) for word in setup) if setup else ""
            text = text or " ".join(self._for_shell(word, line) for word in program)
            self.result.setup.append(text)
        else:
            raise refused(line, f"'{command.source[:60]}' is neither a plain set-up command nor a launch line")

    def _check_include(self, head: str, program: list[str], line: int) -> None:
        """Raise NotConvertibleError if a file beside the script that the script reads is missing."""
        name = program[1] if head in ("source", ".") and len(program) > 1 else ""
        is_here = name and not name.startswith(("/", "~")) and UNKNOWN not in name
        if is_here and not os.path.exists(self.result.files.cwd / name):
            raise refused(line, f"{name}: there is no such file in this folder", "start orch init in the file's folder")

    # -- the launch line

    def _is_launch(self, program: list[str]) -> bool:
        if not program:
            return False
        if PurePosixPath(program[0]).name == "srun":
            inner = program_of(srun_options(program[1:])[1])
            return bool(inner) and PurePosixPath(inner[0]).name not in {*_PRINTS, *_SETUP} and inner[0] != "srun"
        is_shell = PurePosixPath(program[0]).name in SHELLS or program[0].endswith(".sh")
        return is_shell or (is_launcher(program[0]) and program[1:] not in (["--version"], ["-V"]))

    def _launch(self, command: Command, words: list[str]) -> bool:
        line, program = command.line, program_of(words)
        if any(each.startswith("<") for each in command.redirections):
            raise refused(line, "the program's input comes from a file, and orch gives programs no input")
        before, inner = words[: len(words) - len(program)], program
        if PurePosixPath(program[0]).name == "srun":
            inner = program_of(srun_options(program[1:])[1])
        if PurePosixPath(inner[0]).name in SHELLS or inner[0].endswith(".sh"):
            return self._through_shell(command, [*before, *program[: len(program) - len(inner)]], inner)
        if self.result.launch is not None:
            raise refused(line, f"it starts a second program, after line {self.result.launch[0]}: a job starts one")
        self.result.launch = line, self._without_unknown_prefix(words, line)
        return True

    def _through_shell(self, command: Command, before: list[str], inner: list[str]) -> bool:
        """Read the text of `bash -c TEXT` or of a script beside the file, which starts the program."""
        had, name, lines = self.result.launch, PurePosixPath(inner[0]).name, len(self.result.setup)
        rest = inner[1:] if name in SHELLS else inner
        while rest and re.fullmatch(r"-[elux]+", rest[0]):
            rest = rest[1:]
        self.result.launch = None
        if rest[:1] and re.fullmatch(r"-[elux]*c", rest[0]):
            self._nested("".join(rest[1:2]), command, tuple(rest[3:]))
        elif rest and rest[0].endswith((".sh", ".bash")):
            self._called(rest[0], command, tuple(rest[1:]))
        else:
            raise refused(command.line, f"'{shlex.join(inner)[:60]}' is not converted")
        found = self.result.launch
        if found is None and had is not None and len(self.result.setup) > lines:
            raise refused(command.line, f"'{command.source[:60]}' would run after the program")
        if found is None:
            self.result.launch = had
            return False
        if had is not None:
            raise refused(command.line, f"it starts a second program, after line {had[0]}: a job starts one")
        self.result.launch = command.line, [*before, *found[1]]
        return True

    def _nested(self, text: str, command: Command, arguments: tuple[str, ...], line: int = 0) -> None:
        if self.depth >= MOST_FILES:
            raise refused(command.line, "the script calls itself")
        is_same_shell = is_literal(command.words[0]) == "eval"
        passed = {name: value for name, value in self.variables.items() if is_same_shell or self._is_passed(name)}
        _Scope(self.result, passed, arguments, self.exported, self.depth + 1).read(text, line or command.line)

    def _is_passed(self, name: str) -> bool:
        return name in self.exported or name.startswith("SLURM_")

    def _called(self, name: str, command: Command, arguments: tuple[str, ...]) -> None:
        text = self.result.files.script(name)
        if text is None:
            raise refused(command.line, f"{name}: there is no such file in this folder")
        try:
            self._nested(text, command, arguments, 1)
        except UsageError as error:
            raise refused(command.line, f"{name}, {error.message}") from error

    def _without_unknown_prefix(self, words: list[str], line: int) -> list[str]:
        """Return a launch line without the assignments in front of it that need a shell, which become set-up lines."""
        while words and (found := ASSIGNMENT.fullmatch(words[0])) and UNKNOWN in words[0]:
            if not set_by_orch(found[1]):
                self.result.setup.append(f"export {found[1]}={self._for_shell(found[2], line)}")
            words = words[1:]
        return words

    # -- variables

    def _assign(self, command: Command, *, exports: bool) -> None:
        for word in command.words:
            first = word[0].text if word[0].kind == "text" and not word[0].quoted else ""
            found = re.match(r"([A-Za-z_]\w*)(\+?)=", first)
            if found is None:
                if exports and re.fullmatch(r"[A-Za-z_]\w*", first) and first not in _EXPORTS:
                    self._export(first, command)
                elif first not in _EXPORTS and not re.fullmatch(r"-[axrif]+", first):
                    raise refused(command.line, f"'{command.source[:60]}' is not converted")
                continue
            name, rest = found[1], (Part("text", first[found.end() :], first[found.end() :]), *word[1:])
            array = next((part for part in rest if part.kind == "array"), None)
            before = self.variables.get(name, "") if found[2] else ""
            if array is not None:
                items = tuple(each for item in array.items for each in self.expand(item, command))
                self.variables[name] = (*((before,) if isinstance(before, str) and before else before or ()), *items)
                continue
            value = "".join(self.expand(rest, command, splits=False))
            if isinstance(before, tuple):
                raise refused(command.line, f"'{command.source[:60]}' appends text to an array")
            self.variables[name] = before + value
            if exports or name in self.exported:
                self._export(name, command)

    def _export(self, name: str, command: Command) -> None:
        self.exported.add(name)
        value = self.variables.get(name)
        if set_by_orch(name) or value is None or name == _SRUN_CORES:
            return
        if isinstance(value, tuple) or name.startswith(("SLURM_", "SRUN_", "SBATCH_")):
            raise refused(command.line, f"the export of {name} is not converted")
        earlier = [each for each in self.result.setup if each.startswith(f"export {name}=")]
        if UNKNOWN not in value and not earlier:
            self.result.env[name] = value
            return
        self.result.env.pop(name, None)
        self.result.setup = [each for each in self.result.setup if each not in earlier]
        self.result.setup.append(f"export {name}={self._for_shell(value, command.line)}")

    def expand(self, word: Word, command: Command, *, splits: bool = True) -> list[str]:
        """Return the words that a shell makes of a word. Parts that only a shell could tell are marked."""
        found, keeps_empty = [""], False
        for index, part in enumerate(word):
            keeps_empty = keeps_empty or part.quoted
            if part.kind == "text":
                is_pattern = splits and not part.quoted and _EXPANDED_NAMES.search(part.text)
                is_home = not part.quoted and index == 0 and part.text.startswith("~")
                found[-1] += f"{UNKNOWN}{part.raw}{END}" if is_pattern or is_home else part.text
                continue
            value = self._value(part, command)
            if isinstance(value, tuple):
                joined = [*value] or [""]
                found = [*found[:-1], found[-1] + joined[0], *joined[1:]]
                keeps_empty = keeps_empty and bool(value)
            elif part.quoted or not splits or UNKNOWN in value:
                found[-1] += value
            else:
                pieces = re.split(r"[ \t\n]+", value)
                found = [*found[:-1], found[-1] + pieces[0], *pieces[1:]]
        return [each for each in found if each or (keeps_empty and len(found) == 1)]

    def _value(self, part: Part, command: Command) -> str | tuple[str, ...]:
        unknown = f"{UNKNOWN}{part.raw.strip(UNKNOWN + END)}{END}"
        if part.kind == "number":
            return self._number(part.text, command) or unknown
        if part.kind != "variable":
            return unknown
        if part.text in ("@", "*"):
            given_all = self.arguments if part.text == "@" else " ".join(self.arguments)
            return given_all if self.depth else unknown
        if item := re.fullmatch(r"(\w+)\[([@*]|\d+)\]", part.text):
            items = self.variables.get(item[1])
            if isinstance(items, tuple) and item[2] in "@*":
                return " ".join(items) if item[2] == "*" else items
            if isinstance(items, tuple):
                return "".join(items[int(item[2]) : int(item[2]) + 1])
            return unknown
        named = re.fullmatch(r"(\w+)(?:(:?)-(.*))?", part.text, re.DOTALL)
        value = None if named is None else self._of_variable(named[1], named[2], named[3], command)
        return unknown if value is None else value

    def _of_variable(self, name: str, colon: str, default: str | None, command: Command) -> str | None:
        """Return the value of `${NAME}` or `${NAME:-DEFAULT}`; None if only a shell could tell it."""
        if name.isdecimal():
            given: str | tuple[str, ...] | None = "".join(self.arguments[int(name) - 1 : int(name)]) or None
        else:
            given = self.variables.get(name)
        if isinstance(given, tuple):
            given = given[0] if given else ""
        if given or (given is not None and (default is None or not colon)):
            return given
        if default is None or name.startswith("SLURM_"):
            return None
        if given is None and (value := self.result.files.environ.get(name)):
            return value
        text = words_of(f'"{default}"' if '"' not in default else default, command.line)
        return "".join(each for word in text for each in self.expand(word, command, splits=False))

    def _number(self, text: str, command: Command) -> str:
        """Return the value of `$((TEXT))`; "" if it has a value that only a shell could tell."""
        filled = "".join(each for word in words_of(f'"{text}"', command.line) for each in self.expand(word, command))
        filled = re.sub(r"(?<!\w)[A-Za-z_]\w*", lambda found: str(self.variables.get(found[0], "?")), filled)
        if len(filled) > 200 or not re.fullmatch(r"[\d\s+*/%()-]+", filled):
            return ""
        try:
            return str(_calculated(ast.parse(filled.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return ""

    # -- lines for setup

    def _rendered(self, word: Word, line: int) -> str:
        """Return a word of a set-up line for a shell, with the values that the file decides."""
        texts = []
        for part in word:
            if part.kind == "text" and not part.quoted:
                texts.append(part.raw)
            elif part.kind == "command" and _HOOK.fullmatch(part.raw):
                texts.append(f'"{part.raw}"' if part.quoted else part.raw)
            else:
                command = Command(line, part.raw, (), (), "\n")
                found = self.expand((part,), command)
                texts.append(" ".join(self._for_shell(each, line) for each in found) if part.raw or found else "")
        return "".join(texts) or "''"

    def _for_shell(self, value: str, line: int) -> str:
        """Return a value in the syntax of a shell. Its unknown parts must have the same value on each node."""
        pieces, at = list[str](), 0
        for found in _MARKED.finditer(value):
            pieces.append(shlex.quote(value[at : found.start()]) if value[at : found.start()] else "")
            name, is_home = _OF_THE_JOB.fullmatch(found[1]), found[1].startswith("~")
            if not name and not is_home and not _HOOK.fullmatch(found[1]):
                why = f"only a shell on the first node could tell {found[1]}, and each node would get its own value"
                raise refused(line, why)
            pieces.append(found[1] if is_home else f'"{found[1]}"')
            at = found.end()
        rest = value[at:]
        return "".join(pieces) + (shlex.quote(rest) if rest or not pieces else "")


def _calculated(node: ast.expr) -> int:
    """Return the value of an expression of whole numbers. Raises ValueError for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and (rule := _NUMBERS.get(type(node.op))):
        return rule(_calculated(node.left), _calculated(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculated(node.operand)
    raise ValueError("not an expression of whole numbers")
