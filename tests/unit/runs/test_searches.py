"""A search's journal: what is written is read again, whatever was cut off or damaged."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import StoreError
from orchestrator.protocol.metric import Better
from orchestrator.runs.searches import (
    JOURNAL,
    SEARCH,
    Asked,
    Dimension,
    End,
    Entry,
    Sampler,
    Search,
    Seen,
    Stop,
    Told,
    append,
    entries_from,
    journal,
    line_of,
    read_search,
    search_in,
    trials_of,
    write_search,
)

SPACE = (
    Dimension("lr", "job.training.lr", 1e-4, 1e-1, is_log=True),
    Dimension("depth", "job.env.DEPTH", 2, 8, is_whole=True),
    Dimension("--opt", "job.args --opt", choices=("adam", '"1"')),
)
SEARCH_OF = Search(Sampler.TPE, 20, "loss", Better.LOWER, SPACE, Stop.ASHA, 7)
numbers = st.integers(0, 19)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.fixed_dictionaries(
    {"lr": st.floats(1e-4, 1e-1), "depth": st.integers(2, 8), "--opt": st.sampled_from(("adam", '"1"'))}
)
told = st.one_of(
    st.builds(Told, numbers, st.just(End.COMPLETE), finite),
    st.builds(Told, numbers, st.sampled_from((End.STOPPED, End.FAILED))),
)
entries = st.lists(st.one_of(st.builds(Asked, numbers, values), st.builds(Seen, numbers, st.integers(0), finite), told))


def test_a_search_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_search(tmp_path, SEARCH_OF)
    assert read_search(tmp_path) == SEARCH_OF
    (tmp_path / SEARCH).write_text('{"sampler": "tpe", "trials": 3}')
    with pytest.raises(StoreError, match=r"search\.json can't be used: a field of the search is missing or damaged"):
        read_search(tmp_path)


@settings(max_examples=30)  # each has files
@given(entries, st.data())
def test_whatever_was_cut_off_the_rest_of_a_journal_is_read(found: list[Entry], data: st.DataObject) -> None:
    whole = "".join(f"{line_of(entry)}\n" for entry in found).encode()
    cut = data.draw(st.integers(0, len(whole)))
    count = whole[:cut].count(b"\n")
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / JOURNAL).write_bytes(whole[:cut])
        assert journal(folder, SEARCH_OF) == found[:count]
        first, offset = entries_from(folder, SEARCH_OF, 0)
        append(folder, Seen(3, 1, 0.5))  # behind what was cut off
        rest, _ = entries_from(folder, SEARCH_OF, offset)
        if cut and not whole[:cut].endswith(b"\n") and whole[cut : cut + 1] == b"\n":
            assert rest[0] == found[count]  # nothing but its end was cut off
        assert rest[-1] == Seen(3, 1, 0.5)
        assert journal(folder, SEARCH_OF) == [*first, *rest]


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "asked", "trial": 20, "values": {"lr": 0.01, "depth": 3, "--opt": "adam"}}',
        '{"kind": "asked", "trial": 1, "values": {"lr": 0.5, "depth": 3, "--opt": "adam"}}',
        '{"kind": "asked", "trial": 1, "values": {"lr": 0.01, "depth": 3.5, "--opt": "adam"}}',
        '{"kind": "asked", "trial": 1, "values": {"lr": 0.01, "--opt": "adam"}}',
        '{"kind": "asked", "trial": 1, "values": {"lr": 0.01, "depth": 3, "--opt": "sgd"}}',
        '{"kind": "seen", "trial": 1, "step": -1, "value": 0.5}',
        '{"kind": "seen", "trial": 1, "step": 1, "value": NaN}',
        f'{{"kind": "seen", "trial": 1, "step": 1, "value": {10**400}}}',
        '{"kind": "told", "trial": 1, "end": "complete", "value": null}',
        '{"kind": "told", "trial": 1, "end": "lost"}',
        '{"trial": true}',
        "[1]",
        "",
    ],
)
def test_a_damaged_line_did_not_happen(tmp_path: Path, line: str) -> None:
    (tmp_path / JOURNAL).write_text(f"{line}\n{line_of(Seen(1, 2, 0.5))}\n")
    assert journal(tmp_path, SEARCH_OF) == [Seen(1, 2, 0.5)]


def test_of_what_is_said_twice_the_first_holds(tmp_path: Path) -> None:
    point = {"lr": 0.01, "depth": 3, "--opt": "adam"}
    found = trials_of([
        Seen(0, 1, 9.0), Asked(0, point), Asked(0, {**point, "depth": 4}), Seen(0, 1, 2.0), Seen(0, 1, 3.0),
        Told(0, End.COMPLETE, 1.0), Told(0, End.FAILED), Seen(0, 5, 0.0), Asked(1, point),
    ])  # fmt: skip
    assert [(each.number, each.values["depth"], each.seen, each.end, each.value) for each in found] == [
        (0, 3, {1: 2.0}, End.COMPLETE, 1.0), (1, 3, {}, None, None),
    ]  # fmt: skip
    assert search_in(tmp_path, "no-sweep") is None
