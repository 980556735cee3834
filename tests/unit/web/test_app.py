"""What the page answers to what no page asks: a sentence, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.looking import run as looking
from orchestrator.runs import store
from orchestrator.web.metrics import text_of
from tests.unit.views.runs_made import begin, make, tell
from tests.unit.web.browser import Browser


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("/tmp/\\u0000x", "has to be an absolute path"), ("\\u0000", "has to be an absolute path"),
        ("/tmp/\\ud800", "an invalid character"), ("/tmp/\\udc80", "an invalid character"),
        ("~nobody-such-user/x", "begins with ~nobody-such-user: there is no such user here"),
        ("~nobody-\\u0000/x", "the folder"), ("", "has to be"), ("x/y", "has to be"),
    ],
)  # fmt: skip
def test_a_folder_that_is_none_is_refused(tmp_path: Path, folder: str, said: str) -> None:
    run = make(tmp_path, "train-abcdef")
    answer = Browser(tmp_path).post(f"/api/runs/{run.run_id}/pull", f'{{"to": "{folder}"}}')
    assert answer.status == 400
    assert said in answer.found["error"]


@pytest.mark.parametrize("code", ['"\\ud800"', '"é"', "5", "null", "[]", '{"a": 1}', '"\\u0000"'])
def test_an_odd_code_opens_nothing(tmp_path: Path, code: str) -> None:
    browser = Browser(tmp_path)
    browser.access.new_code()
    answer = browser.post("/enter", f'{{"code": {code}}}')
    assert (answer.status, answer.text) == (403, "this code was used before: run orch ui once more\n")


@pytest.mark.parametrize(("levels", "is_read"), [(90, True), (900, False)])
def test_a_result_that_is_nested_too_deeply_is_left_out_and_its_page_is_shown(
    tmp_path: Path, levels: int, is_read: bool
) -> None:
    run, deep = make(tmp_path, "train-abcdef"), "[" * levels + "]" * levels
    (run.path / "result.json").write_text(f'{{"deep": {deep}, "loss": 1}}')
    answer = Browser(tmp_path).get(f"/api/runs/{run.run_id}")
    assert answer.status == 200
    assert (answer.found["result"] or {}).get("loss") == (1 if is_read else None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.json", "[]", "run.json does not contain a JSON object"),
        ("run.json", "\udcff", "run.json can't be read"),
        ("plan.json", "5", ""),
        ("metrics.jsonl", None, "metrics.jsonl can't be read: Is a directory"),
        ("events.jsonl", None, "events.jsonl can't be read: Is a directory"),
        ("events.jsonl", '\udcff\n{"kind": 5}\n[]\n', ""),
        ("result.json", "\udcff", ""),
    ],
)
def test_a_run_with_a_broken_file_has_its_page_which_says_so(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    run = make(tmp_path, "train-abcdef")
    (run.path / name).unlink(missing_ok=True)
    if text is None:
        (run.path / name).mkdir()
    else:
        (run.path / name).write_text(text, errors="surrogateescape")
    browser = Browser(tmp_path)
    for place in ("", "/files", "/ranks", "/step_times", "/pace", "/use", "/log"):
        answer = browser.get(f"/api/runs/{run.run_id}{place}")
        assert answer.status == 200, answer.text
        if place == "":
            assert said in " ".join([*answer.found["problems"], answer.found["detail"]])
    for path in ("/api/runs", f"/api/curves?run={run.run_id}&metric=loss"):
        assert browser.get(path).status == 200, path
    assert text_of(browser.page.reader.runs()).endswith("# EOF\n")
    answer = browser.get(f"/api/diff?one={run.run_id}&other={run.run_id}")
    assert answer.status in (200, 409), answer.text


def test_of_many_ranks_those_with_trouble_are_sent_and_the_rest_counted(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef")
    begin(run, ranks=250)
    tell(run, 0, "rank_exit", 120.0, rank=240, code=1, attempt=0)
    browser = Browser(tmp_path)
    found = browser.get(f"/api/runs/{run.run_id}/ranks").found
    assert (len(found["ranks"]), found["ranks_left"]) == (100, 150)
    assert (found["ranks"][0]["rank"], found["ranks"][0]["state"]) == (240, "failed")
    shown = browser.get(f"/api/runs/{run.run_id}").found["ranks"]
    assert [(rank["rank"], rank["end"]) for rank in shown] == [(240, "exit code 1")]


def test_what_a_run_has_cost_is_said_without_its_metrics_being_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, "train-abcdef")
    (run.path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 1}\n')
    browser, read = Browser(tmp_path), list[str]()
    real = store.read_lines
    monkeypatch.setattr(store, "read_lines", lambda path, below=None: read.append(str(path)) or real(path, below))
    monkeypatch.setattr(looking, "read_lines", lambda path, below=None: read.append(str(path)) or real(path, below))
    assert browser.get(f"/api/runs/{run.run_id}").status == 200
    assert [each for each in read if each.endswith("metrics.jsonl")] == []


def test_the_folder_of_a_run_is_named_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path / "state", "train-abcdef")
    browser, path = Browser(tmp_path / "state"), f"/api/runs/{run.run_id}"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert browser.get(path).found["folder"] == "~/state/runs/train-abcdef"
    monkeypatch.setenv("HOME", f"{tmp_path}/sta")
    assert browser.get(path).found["folder"] == str(run.path)


def test_tags_and_notes_are_set_from_the_page(tmp_path: Path) -> None:
    run, browser = make(tmp_path, "train-abcdef"), Browser(tmp_path)
    where = f"/api/runs/{run.run_id}/labels"
    answer = browser.post(where, '{"add": ["a", "b"], "note": "<b>x</b>"}')
    assert answer.found == {"tags": ["a", "b"], "note": "<b>x</b>"}
    assert browser.post(where, '{"remove": ["a"]}').found == {"tags": ["b"], "note": "<b>x</b>"}
    assert browser.get("/api/runs").found[0]["labels"] == {"tags": ["b"], "note": "<b>x</b>"}
    for body in ('{"add": "a"}', '{"add": [1]}', '{"remove": {}}', '{"note": 1}', '{"add": ["a b"]}'):
        answer = browser.post(where, body)
        assert answer.status == 400, body
        assert answer.found["error"]


def test_the_trend_of_each_run_is_that_of_the_jobs_metric_and_a_broken_run_has_none(tmp_path: Path) -> None:
    good = make(tmp_path, "train-abcdef", job={"metric": {"name": "accuracy", "better": "higher"}})
    lines = [{"step": step, "loss": 1.0, "accuracy": float(step)} for step in range(8)]
    (good.path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    plain, broken = make(tmp_path, "train-bcdefg"), make(tmp_path, "train-cdefgh")
    (broken.path / "run.json").write_text("[]")
    asked = "&".join(f"run={run.run_id}" for run in (good, plain, broken))
    found = Browser(tmp_path).get(f"/api/trends?{asked}&run=gone").found
    assert {name: trend and (trend["metric"], trend["better"]) for name, trend in found.items()} == {
        good.run_id: ("accuracy", "higher"), plain.run_id: None, broken.run_id: None, "gone": None,
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "file"), [("runs", "views.json"), ("curves", "curve_views.json")])
def test_views_are_saved_and_removed(tmp_path: Path, kind: str, file: str) -> None:
    browser, where = Browser(tmp_path), f"/api/views/{kind}"
    assert browser.get(where).found == {}
    assert browser.post(where, '{"name": "a/b", "query": "?filter=x"}').found == {"a/b": "?filter=x"}
    assert browser.get(where).found == {"a/b": "?filter=x"}
    assert (tmp_path / "ui" / file).stat().st_mode & 0o777 == 0o600
    assert browser.get("/api/views/files").status == 400
    assert browser.post(where, '{"name": "a/b", "query": null}').found == {}
    for body in (
        '{"name": "", "query": "x"}', '{"name": "a\\u001b", "query": "x"}', '{"name": "a", "query": 5}',
        '{"query": "x"}', '{"name": "a", "query": "\\ud800"}', json.dumps({"name": "a", "query": "x" * 4001}),
    ):  # fmt: skip
        assert browser.post(where, body).status == 400, body
