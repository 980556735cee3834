"""Tags and notes: what can be one, two writers at once, damaged files, and how a reader learns of a change."""

from __future__ import annotations

import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.errors import RunNotFoundError, UsageError
from orchestrator.operations.bundle import bundle
from orchestrator.runs.labels import (
    FILE,
    MOST_OF_A_NOTE,
    MOST_TAGS,
    NO_LABELS,
    Labels,
    Relabelled,
    change_tags,
    labels_of,
    set_note,
)
from orchestrator.runs.store import RunDir
from tests.unit.views.runs_made import make


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make(tmp_path / "root", "r-1")


def test_tags_are_added_and_removed_and_a_note_is_replaced(run: RunDir) -> None:
    assert labels_of(run) == NO_LABELS
    assert change_tags(run, ["b", "a", "b"]).tags == ("b", "a")
    assert change_tags(run, ["c"], ["a", "x"]).tags == ("b", "c")
    assert set_note(run, "  one\ntwo ") == Labels(("b", "c"), "one\ntwo")
    assert set_note(run, "").note == ""
    assert labels_of(run) == Labels(("b", "c"))
    assert (run.path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("tag", ["", "-a", "a b", "a,b", 'a"', "a+b", "a\n", "x" * 41, "\udcff", "\x1b[31m"])
def test_a_word_that_can_not_be_a_tag_is_refused(run: RunDir, tag: str) -> None:
    with pytest.raises(UsageError, match="can't be a tag"):
        change_tags(run, ["good", tag])
    assert labels_of(run) == NO_LABELS


def test_there_is_a_limit_of_tags_and_of_a_note(run: RunDir) -> None:
    change_tags(run, [str(number) for number in range(MOST_TAGS)])
    with pytest.raises(UsageError, match=f"at most {MOST_TAGS} tags"):
        change_tags(run, ["more"])
    for text in ("x" * (MOST_OF_A_NOTE + 1), "a\x1b[2J", "\udcff"):
        with pytest.raises(UsageError, match="the note is not valid"):
            set_note(run, text)


def test_of_many_writers_at_once_none_loses_what_another_wrote(run: RunDir) -> None:
    tags = [f"t{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda tag: change_tags(run, [tag]), tags))
    assert sorted(labels_of(run).tags) == sorted(tags)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("[]", NO_LABELS),
        ("{", NO_LABELS),
        ('{"tags": ["ok", 1, "a b", "ok"], "note": 3}', Labels(("ok",))),
        ('{"tags": "ok", "note": "a\\u001b[2J"}', NO_LABELS),
    ],
)
def test_what_was_damaged_counts_as_lost(run: RunDir, text: str, labels: Labels) -> None:
    (run.path / FILE).write_text(text)
    assert labels_of(run) == labels


def test_a_reader_is_told_which_runs_have_changed(run: RunDir) -> None:
    other = make(run.root, "r-2")
    changed = Relabelled(run.root)
    assert changed.look() == set()
    change_tags(run, ["a"])
    set_note(other, "b")
    assert changed.look() == {"r-1", "r-2"}
    assert changed.look() == set()


def test_a_run_that_was_removed_meanwhile_is_said_to_be_gone(run: RunDir) -> None:
    with pytest.raises(RunNotFoundError, match="removed meanwhile"):
        change_tags(RunDir(run.path.with_name("gone-1")), ["a"])


def test_a_bundle_has_the_labels_without_secrets(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-token-1")
    set_note(run, "it used canary-token-1")
    bundle(run, tmp_path / "b.tgz")
    with tarfile.open(tmp_path / "b.tgz") as archive:
        member = archive.extractfile(f"r-1/{FILE}")
        assert member is not None
        text = member.read().decode()
    assert "it used" in text
    assert "canary" not in text
