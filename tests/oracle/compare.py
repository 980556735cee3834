"""Run a program of the oracle's table by hand and by orch, and compare what both did."""

from __future__ import annotations

import fnmatch
import itertools
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.oracle.table import PROGRAMS, RANK, Program
from tests.result import Result

# Files that are in the folder before a run, and that git does not know.
IGNORED = {"old.pt": b"old weights", "large.bin": b"old" * 1_000_000}
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Outcome:
    """What a program did: how it ended, what its ranks printed, and the files that it left."""

    ended_well: bool
    ranks: tuple[str, ...]
    files: Files


_BY_HAND: dict[str, Outcome] = {}  # of each line; a user's machine makes no difference


@dataclass(kw_only=True)
class Place(ABC):
    """A machine on which a user types lines, in folders below `root`."""

    root: Path  # as the user names it
    options: tuple[str, ...]  # of each `orch run` and `orch submit`
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @abstractmethod
    def shell(self, folder: Path, words: list[str], python: str) -> Result:
        """Run the words in a folder, with the environment of a program's Python on PATH."""

    @abstractmethod
    def orch(self, folder: Path, *words: str, python: str = "bare") -> Result:
        """Run orch's command line in a folder."""

    @abstractmethod
    def seen(self, path: Path) -> Path:
        """Return the user's path as this process sees it."""

    def lay(self) -> Path:
        """Return a new folder with all programs, alone in a folder of its own."""
        folder = self.root / str(next(self._numbers)) / "programs"
        here = self.seen(folder)
        shutil.copytree(PROGRAMS, here, ignore=shutil.ignore_patterns("__pycache__"))
        (here / "history.txt").write_text("first\n")
        (here / ".gitignore").write_text("".join(f"{name}\n" for name in IGNORED))
        for name, content in IGNORED.items():
            (here / name).write_bytes(content)
        return folder

    def by_hand(self, program: Program, words: list[str]) -> Outcome:
        """Return what the line does if it is typed, which is found out once."""
        key = shlex.join(words)
        if key not in _BY_HAND:
            folder = self.lay()
            before = files_below(self.seen(folder.parent))
            done = self.shell(folder, words, program.python)
            after = files_below(self.seen(folder.parent))
            new = {name: content for name, content in after.items() if before.get(name) != content}
            outcome = Outcome(done.code == 0, ranks_in(done.out), {as_output(name): new[name] for name in new})
            assert len(outcome.ranks) == program.ranks, f"by hand: {done}"
            assert outcome.ended_well == program.ends_well, f"by hand: {done}"
            _BY_HAND[key] = outcome
        return _BY_HAND[key]

    def by_orch(self, program: Program, *options: str) -> tuple[str, Outcome]:
        """Return the run of the line by `orch run`, and what it did."""
        folder = self.lay()
        before = files_below(self.seen(folder.parent))
        words = ("run", *self.options, *options, "--detach", "--json", "--", *program.words)
        done = self.orch(folder, *words, python=program.python)
        assert done.code == 0, done.err
        run = str(done.json["run_id"])
        outcome = self.outcome(folder, run)
        changed = {
            name for name, content in files_below(self.seen(folder.parent)).items() if before.get(name) != content
        }
        assert changed == set(), f"the run has changed the user's own {sorted(changed)}"
        return run, outcome

    def outcome(self, folder: Path, run: str, *pull: str) -> Outcome:
        """Wait for a run's end, and return what it did; its files are those that `orch pull` delivers."""
        waited = self.orch(folder, "wait", run)
        to = self.root / f"pulled-{next(self._numbers)}"
        pulled = self.orch(folder, "pull", run, *pull, "--to", str(to))
        assert pulled.code == 0, pulled.err
        said = self.orch(folder, "logs", run, "--all").out
        outputs = self.seen(to) / "outputs"
        return Outcome(waited.code == 0, ranks_in(said), of_all_nodes(files_below(outputs)))


def assert_sweep_is_as_by_hand(place: Place, program: Program, option: str, values: tuple[str, str]) -> None:
    """Sweep over values of an option, of which the first is the best: each run is what the hand does with its value."""
    folder = place.lay()
    (place.seen(folder) / "job.yaml").write_text(
        f"script: {program.words[1]}\nmetric: {{name: loss, better: lower}}\n", encoding="utf-8"
    )
    sweep = (
        "submit",
        "job.yaml",
        *place.options,
        "--sweep",
        f"{option}={','.join(values)}",
        "--parallel",
        "2",
        "--json",
    )
    done = place.orch(folder, *sweep, python=program.python)
    assert done.code == 0, done.err
    wanted = [place.by_hand(program, [*program.words[:2], f"{option}={value}"]) for value in values]
    assert wanted[0].files != wanted[1].files
    assert sorted(wanted[0].files) == sorted(wanted[1].files)
    runs = done.json["runs"]
    for run, outcome in zip(runs, wanted, strict=True):
        assert_same(program, place.outcome(folder, run), outcome)
    to = place.root / "best"
    pulled = place.orch(folder, "pull", done.json["sweep"], "--best", "--to", str(to))
    assert (pulled.code, f"{runs[0]} is the best" in pulled.err) == (0, True), pulled
    assert files_below(place.seen(to) / "outputs") == wanted[0].files


def ranks_in(text: str) -> tuple[str, ...]:
    return tuple(sorted(RANK.findall(text)))


def files_below(folder: Path) -> dict[str, bytes]:
    """The files of a folder, without bytecode, which is no output."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }


def as_output(name: str) -> str:
    """The name that `orch pull` gives to a file of the folder above the programs."""
    inside = name.removeprefix("programs/")
    return inside if inside != name else f"beside/{name}"


def of_all_nodes(files: Files) -> Files:
    """The outputs with those that node 0 lacks under their own names."""
    others = {name.partition("/")[2]: content for name, content in files.items() if name.startswith("node_")}
    return {**others, **{name: content for name, content in files.items() if not name.startswith("node_")}}


def assert_same(program: Program, got: Outcome, wanted: Outcome) -> None:
    """Fail with the first thing that orch did otherwise than the hand."""
    assert got.ended_well == wanted.ended_well
    assert got.ranks == wanted.ranks
    assert sorted(got.files) == sorted(wanted.files)
    other = [name for name, content in wanted.files.items() if got.files[name] != content]
    assert [name for name in other if not any(fnmatch.fnmatch(name, each) for each in program.differs)] == []
