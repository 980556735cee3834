"""Lists of hosts: read as Slurm and profiles write them, and folded for people."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.protocol.hostlist import (
    MAX_HOSTS,
    by_words,
    expand,
    fold,
    in_words,
    nodes_in_words,
    numbers_in_words,
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,5]", ["n08", "n09", "n10", "n5"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("n[3].lan", ["n3.lan"]),
        ("n[1-3,5],b[07-09]", ["n1", "n2", "n3", "n5", "b07", "b08", "b09"]),
        ("r[1-2]n[01-02], login", ["r1n01", "r1n02", "r2n01", "r2n02", "login"]),
        ("gpu-a,gpu-b.site", ["gpu-a", "gpu-b.site"]),
        ("n[098-101]-ib", ["n098-ib", "n099-ib", "n100-ib", "n101-ib"]),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "n1,",
        "n1,,n2",
        "n[",
        "n]",
        "n[1-",
        "n[]",
        "n[a]",
        "n[3-1]",
        "n[[1]]",
        "n[1-2",
        "n[1--2]",
        "n[²]",
        "n[-1]",
    ],
)
def test_a_list_that_cannot_be_read_never_becomes_one_host(text: str) -> None:
    with pytest.raises(ValueError, match=r"bracket|can't be read|backwards|empty name"):
        expand(text)


@pytest.mark.parametrize(
    "text",
    [
        f"n[1-{MAX_HOSTS + 1}]", "n" + "[1-999]" * 3, "n" + "[1-99999]" * 9000, "n[" + "1-99999," * 9000 + "1]",
        "n[1-99999]," * 9000 + "x",
    ],
)  # fmt: skip
def test_too_many_hosts_are_refused_before_they_are_made(text: str) -> None:
    with pytest.raises(ValueError, match="more than 100000 hosts"):
        expand(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="n[]0123-,. ", max_size=20))
def test_any_text_expands_or_is_refused(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert names
    assert not any(char in name for name in names for char in "[],")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        ([f"n{number}" for number in range(1, 63)], "n[1-62]"),
        ([f"n{number:03}" for number in range(8, 12)], "n[008-011]"),
        (["n8", "n9", "n10", "n11"], "n[8-11]"),
        (["n9", "n010"], "n[9,010]"),
        (["n3", "n1", "n2", "n7"], "n[3,1-2,7]"),
        (["a1.lan", "a2.lan", "b1.lan", "b2.lan", "login"], "a[1-2].lan,b[1-2].lan,login"),
        (["r1n01", "r1n02", "r2n01", "r2n02"], "r1n[01-02],r2n[01-02]"),
        (["10.0.0.1", "10.0.0.2", "10.0.1.1"], "10.0.0.[1-2],10.0.1.1"),
        (["n1", "n1"], "n1,n1"),
        (["me@n1:22", "me@n2:22"], "me@n[1-2]:22"),
    ],
)
def test_folding(names: list[str], text: str) -> None:
    assert fold(names) == text
    assert not names or expand(text) == names


NAMES = st.lists(
    st.from_regex(r"[a-c]{0,2}[0-9]{1,4}([.-][ab]?[0-9]{0,2})?", fullmatch=True) | st.sampled_from(["login", "gpu"]),
    min_size=1,
    max_size=60,
)
NUMBERED = st.tuples(st.lists(st.integers(0, 130), min_size=1, max_size=80), st.integers(1, 4)).map(
    lambda drawn: [f"n{number:0{drawn[1]}}" for number in drawn[0]]
)


@settings(max_examples=400, deadline=None)
@given(NAMES | NUMBERED | st.lists(st.text("n019-", min_size=1, max_size=25), min_size=1, max_size=20))
def test_what_was_folded_expands_to_the_same(names: list[str]) -> None:
    assert expand(fold(names)) == names


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=8), max_size=8))
def test_any_names_can_be_shown(names: list[str]) -> None:
    assert isinstance(in_words(names), str)
    assert isinstance(fold(names), str)


def test_people_are_shown_a_few_one_by_one_and_many_folded() -> None:
    assert in_words([]) == ""
    assert in_words(["n3", "n1", "n2"]) == "n3, n1, n2"
    assert in_words(sorted(f"n{number}" for number in range(1, 63))) == "n[1-62]"
    assert in_words(["b2", "a1", "login", "a2", "b1"]) == "a[1-2], b[1-2], login"
    assert nodes_in_words([(3, "n4"), (5, "n6")]) == "node 3 (n4), node 5 (n6)"
    assert nodes_in_words([(rank, f"n{rank + 1}") for rank in (0, 2, 3, 4)]) == "nodes 0, 2-4 (n[1,3-5])"
    assert numbers_in_words([1, 2, 3]) == "1, 2, 3"
    assert numbers_in_words([1, 2, 3, 7]) == "1-3, 7"


def test_what_is_said_of_many_hosts_is_one_line() -> None:
    assert by_words([("n1", "ok"), ("n2", "ok"), ("n3", "full")]) == ["n1: ok", "n2: ok", "n3: full"]
    told = [(f"n{number}", "full" if number == 3 else "ok") for number in range(1, 63)]
    assert by_words(told) == ["n[1-2,4-62]: ok", "n3: full"]
    assert by_words([("no colon here", "")]) == ["no colon here"]
