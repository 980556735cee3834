"""The looks at the files go on whatever lies there, and each stream is told what can't be read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.render.runs import note
from orchestrator.runs.labels import change_tags
from orchestrator.runs.store import RunDir
from orchestrator.views.reader import Reader
from orchestrator.web import watcher
from orchestrator.web.signatures import Signatures, signatures_of
from orchestrator.web.watcher import Watcher
from tests.unit.views.runs_made import make


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "LOOK_SECONDS", 0.001)


def broken(run: RunDir) -> None:
    (run.path / "run.json").write_text("[]")
    (run.path / "metrics.jsonl").mkdir()
    (run.path / "events.jsonl").write_bytes(b"\xff\n")


async def first_of(watch: Watcher, run: str | None, seen: Signatures | None = None) -> dict[str, Any]:
    stream = watch.listen(run, seen)
    try:
        return await anext(stream)  # type: ignore[arg-type]
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


def test_a_run_with_broken_files_is_watched_and_hides_no_other(tmp_path: Path) -> None:
    broken(run := make(tmp_path, "train-abcdef"))
    other = make(tmp_path, "train-bcdefg")
    watch = Watcher(Reader(tmp_path, note))

    async def looks() -> tuple[dict[str, Any], dict[str, Any]]:
        return await first_of(watch, None), await first_of(watch, run.run_id)

    table, page = asyncio.run(looks())
    assert {row["run_id"]: row["state"] for row in table["rows"]} == {
        run.run_id: "unreadable",
        other.run_id: "pending",
    }
    assert "state" in page["changed"]


def test_a_look_that_fails_is_told_and_the_next_ones_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, fails = make(tmp_path, "train-abcdef"), [True]
    real = watcher.signatures_of

    def signatures(found: RunDir) -> Signatures:
        if fails[0]:
            raise RecursionError("a file without an end")
        return real(found)

    monkeypatch.setattr(watcher, "signatures_of", signatures)
    watch = Watcher(Reader(tmp_path, note))

    async def looks() -> list[dict[str, Any]]:
        stream = watch.listen(run.run_id)
        told = [await anext(stream)]  # type: ignore[arg-type]
        fails[0] = False
        told += [await anext(stream), await anext(stream)]  # type: ignore[arg-type]
        await stream.aclose()  # type: ignore[attr-defined]
        return told

    first, changed, well = asyncio.run(looks())
    assert first == {"problem": "what has changed can't be read: RecursionError: a file without an end"}
    assert "state" in changed["changed"]
    assert well == {"problem": ""}


def test_a_run_that_is_removed_while_it_is_watched_is_said(tmp_path: Path) -> None:
    watch = Watcher(Reader(tmp_path, note))
    assert asyncio.run(first_of(watch, "none-abcdef")) == {"problem": "no run is called 'none-abcdef'"}


def test_a_page_is_told_only_of_what_it_has_not_seen(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef")
    seen = signatures_of(run)
    assert signatures_of(run) == seen
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n')
    watch = Watcher(Reader(tmp_path, note))
    assert asyncio.run(first_of(watch, run.run_id, seen)) == {"changed": ["metrics"]}
    change_tags(run, ["late"])
    assert asyncio.run(first_of(watch, run.run_id, signatures_of(run) | {"state": ""})) == {"changed": ["state"]}
    assert signatures_of(run)["state"] != seen["state"]


def test_the_table_comes_with_the_first_message_also_where_there_is_no_run(tmp_path: Path) -> None:
    watch = Watcher(Reader(tmp_path, note))
    assert asyncio.run(first_of(watch, None)) == {"rows": [], "gone": [], "all": True}
    make(tmp_path, "train-abcdef")
    told = asyncio.run(first_of(watch, None))
    assert (told["all"], [row["run_id"] for row in told["rows"]]) == (True, ["train-abcdef"])
