"""Which files are outputs, that every file has one name at home, and that a limit takes what matters most first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.outputs import (
    ABOVE,
    BESIDE,
    CHECKPOINTS,
    CODE,
    IN_CONTAINER,
    OUTPUTS,
    Entry,
    Matcher,
    OutputRules,
    chosen,
    home_names,
    leads_out,
)

NAMES = st.text("ab.", min_size=1, max_size=3).filter(lambda name: set(name) != {"."})
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


def is_left_out(matcher: Matcher, path: str) -> bool:
    """As the walk does it: a folder that is left out is not looked into."""
    folders = [path[:at] for at, char in enumerate(path) if char == "/"]
    return not all(map(matcher.enters, folders)) or not matcher.takes(path)


@pytest.mark.parametrize(
    "path", ["__pycache__/a.pyc", "x/__pycache__/a", ".git/config", "data/mnist/raw", ".venv/bin/python", "x.pyc"]
)
def test_what_anybody_can_make_anew_is_left_out(path: str) -> None:
    assert is_left_out(Matcher(OutputRules()), path)


def test_the_job_can_lift_what_is_left_out() -> None:
    assert not is_left_out(Matcher(OutputRules(exclude=("!data/",))), "data/mine")
    assert not is_left_out(Matcher(OutputRules()), "logs/data/mine")


def entry(path: str, root: str = CODE, size: int = 1, time: int = 0) -> Entry:
    return Entry(root, path, size, time)


def test_files_of_all_folders_have_names_of_their_own_at_home() -> None:
    found = home_names([
        entry("x"), entry("x", OUTPUTS), entry("y/z"), entry("y", OUTPUTS), entry("a.pt", CHECKPOINTS),
        entry("node_1/b"), entry("plain"), entry("log", BESIDE), entry("log", IN_CONTAINER), entry("log", ABOVE),
    ])  # fmt: skip
    assert {name: (each.root, each.path) for name, each in found.items()} == {
        "x": (OUTPUTS, "x"),
        "renamed/code/x": (CODE, "x"),
        "y": (OUTPUTS, "y"),
        "renamed/code/y/z": (CODE, "y/z"),
        "checkpoints/a.pt": (CHECKPOINTS, "a.pt"),
        "renamed/code/node_1/b": (CODE, "node_1/b"),
        "plain": (CODE, "plain"),
        "beside/log": (BESIDE, "log"),
        "renamed/beside_in_container/log": (IN_CONTAINER, "log"),
        "above/log": (ABOVE, "log"),
    }
    assert list(home_names([entry("x")], 2)) == ["node_2/x"]


@given(st.lists(st.tuples(st.sampled_from([CODE, OUTPUTS, CHECKPOINTS]), PATHS), unique=True, max_size=8))
def test_no_name_at_home_is_another_ones_or_its_folder(files: list[tuple[str, str]]) -> None:
    files = [file for file in files if not any(one[0] == file[0] and one[1].startswith(f"{file[1]}/") for one in files)]
    names = list(home_names([entry(path, root) for root, path in files]))
    assert len(names) == len(files)
    assert not [one for one in names for other in names if other.startswith(f"{one}/")]


def test_over_the_limit_the_newest_checkpoint_comes_first_then_small_files() -> None:
    files = {
        "checkpoint-100/w": entry("", size=50, time=1),
        "checkpoint-200/w": entry("", size=50, time=2),
        "log": entry("", size=5),
        "large": entry("", size=90),
    }
    assert chosen(files, 1000) == set(files)
    assert chosen(files, 60) == {"checkpoint-200/w", "log"}
    assert chosen(files, 10) == {"log"}


@given(st.dictionaries(PATHS, st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_never_more_is_chosen_than_the_limit_and_nothing_that_fits_is_left_out(
    sizes: dict[str, int], limit: int
) -> None:
    files = {name: entry(name, size=size) for name, size in sizes.items()}
    found = chosen(files, limit)
    room = limit - sum(sizes[name] for name in found)
    assert room >= 0
    assert all(sizes[name] > room for name in files.keys() - found)


@pytest.mark.parametrize("name", ["/x", "../x", "a/../../x", "a//b", "a\0b", "", ".", "a/."])
def test_names_that_lead_out_are_told(name: str) -> None:
    assert leads_out(name)


@pytest.mark.parametrize("name", ["x", "..x/y", "a/b c", "odd-\udcff"])
def test_plain_names_are_told(name: str) -> None:
    assert not leads_out(name)


def test_rules_that_were_damaged_count_as_not_given() -> None:
    assert OutputRules.from_json(None) == OutputRules.from_json({"include": 3, "max_size": "much"}) == OutputRules()
    rules = OutputRules(("a",), ("!b",), 5)
    assert OutputRules.from_json(rules.to_json()) == rules


def test_folders_may_be_nested_deeply() -> None:
    path = "/".join(["d"] * 5000)
    assert list(home_names([entry(f"{path}/f"), entry(f"{path}/g")])) == [f"{path}/f", f"{path}/g"]
