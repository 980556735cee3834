"""The page's modules in Chromium, without a server: the formatter's table, the filter, columns, groups, and axes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.web.app import STATIC

CHROMIUM = "/usr/bin/chromium"
if not os.path.exists(CHROMIUM):
    pytest.skip("there is no Chromium: python -m tests.testbed install", allow_module_level=True)

from playwright.sync_api import Page, Route, sync_playwright  # noqa: E402

TABLE = json.loads((Path(__file__).parents[1] / "unit" / "protocol" / "quantities.json").read_text())
NAMES = {"size": "bytes", "duration": "duration", "rate": "rate", "number": "number"}
ROW = {"run_id": "r-1", "name": "r", "profile": "lab", "state": "failed", "created": 100.0, "started": 110.0,
       "ended": 710.0, "world_size": 2, "restarts": 0, "sweep": None, "note": "SIGKILL, rank 1 on node 0 (n1)",
       "place": "rank 1 on node 0 (n1)", "labels": {"tags": ["ablation"], "note": "Too High"},
       "facts": {"config.lr": 0.1, "config.optimizer.name": "AdamW", "result.loss": 0.5, "metric.loss": 0.7,
                 "git.dirty": True}}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        path = STATIC / name
        if path.is_file():
            route.fulfill(path=path, content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html><title>scripts</title>", content_type="text/html")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.route("**/*", answer)
        page.goto("http://scripts.test/")
        yield page
        browser.close()


def called(page: Page, module: str, code: str, given: Any = None) -> Any:
    """What the code, a function of the module and a value, returns."""
    script = f"async (given) => (({code}))(await import('/static/{module}.js'), given)"
    return page.evaluate(script, given)


def test_the_page_formats_as_the_terminal_does(page: Page) -> None:
    asked = [[NAMES[kind], given] for kind, given, _ in TABLE]
    found = called(page, "format", "(format, all) => all.map(([name, given]) => format[name](...given))", asked)
    assert [[*case[:2], text] for case, text in zip(TABLE, found, strict=True)] == TABLE
    odd = "(format) => [NaN, Infinity, -Infinity, undefined].map((each) => [format.number(each), format.bytes(each)])"
    assert called(page, "format", odd) == [["nan", "-"], ["inf", "-"], ["-inf", "-"], ["-", "-"]]


def passes(page: Page, source: str, **changes: Any) -> bool | str:
    """Whether the row passes the filter; the sentence if the filter has a mistake."""
    code = """async (filter, [source, row]) => {
      const { Columns } = await import('/static/columns.js');
      try {
        return filter.compile(source, new Columns([row]), new Date(800 * 1000))(row);
      } catch (error) {
        if (error instanceof filter.FilterError) return error.message;
        throw error;
      }
    }"""
    found: bool | str = called(page, "filter", code, [source, {**ROW, **changes}])
    return found


@pytest.mark.parametrize(
    "source",
    [
        "", "  ", "sigkill LAB", '"rank 1 on"', "state:failed", "state:ended", "state:failed,cancelled",
        "-state:running",
        "lr>0.05", "lr>=.1", "lr<1e0", "lr=0.1", "lr:0.1", "lr!=0.2", "config.lr<=0.1", "tag:ablation", "TAG:Ablation",
        "-tag:abl", "note:high", "note:\"too high\"", "optimizer.name:adam", "name:r name=r", "optimizer.name=adamw",
        "loss=0.5", "metric.loss=0.7", "took>9m", "took<11min", "took=600s", "dirty:true", "lr:*", "-sweep:*",
        "ranks:2", "ended:today", "profile!=x", "restarts<1",
    ],
)  # fmt: skip
def test_rows_that_pass(page: Page, source: str) -> None:
    assert passes(page, source) is True


@pytest.mark.parametrize(
    "source",
    [
        "other", '"rank 2"', "state:running", "state:live", "-state:failed", "lr>0.1", "lr<0.1", "lr!=0.1", "tag:abl",
        "note=high", "name!=r", "took>10m", "sweep:x", "sweep!=x", "optimizer.name>3", "lr:0.2,0.3", "-lr:*",
    ],
)  # fmt: skip
def test_rows_that_do_not_pass(page: Page, source: str) -> None:
    assert passes(page, source) is False


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('a "b c', "The quotation mark before 'b c' is not closed. Add another one at the end of the text."),
        ("lr>", "There is no value behind 'lr>'. Write it like lr>0.1 or state:failed."),
        ("state:failed,", "There is no value behind 'state:'. Write it like lr>0.1 or state:failed."),
        (">0.1", "There is no column before '>0.1'. Write it like lr>0.1 or state:failed."),
        ("lr>high", "lr>high: 'high' is not a number. Write it like lr>0.1 or state:failed."),
        ("lrr>1", "No run has a column 'lrr'. Did you mean lr?"),
        ("http://x", "No run has a column 'http'. To search for the text itself, put it in quotation marks."),
    ],
)
def test_a_mistake_in_a_filter_is_said_clearly(page: Page, source: str, said: str) -> None:
    assert passes(page, source) == said


def test_rows_are_sorted_with_those_without_a_value_last(page: Page) -> None:
    code = """(columns, facts) => {
      const rows = facts.map((each) => ({ facts: each }));
      const by = columns.column("config.lr");
      return [false, true].map((down) => columns.sorted(rows, by, down).map((row) => row.facts["config.lr"] ?? null));
    }"""
    facts = [{"config.lr": 2}, {}, {"config.lr": "x"}, {"config.lr": 10}]
    assert called(page, "columns", code, facts) == [[2, 10, "x", None], [10, 2, "x", None]]


def test_the_settings_that_differ_and_the_metrics_that_say_most_are_suggested(page: Page) -> None:
    code = "(columns, facts) => new columns.Columns(facts.map((each) => ({ facts: each }))).suggested()"
    facts = [
        {"config.lr": lr, "config.same": 1, "config.seed": lr, "config.opt": str(lr), "config.third": lr,
         "metric.loss": lr, "result.loss": lr, "metric.eval.loss": lr,
         "metric.accuracy": lr, "result.seconds": lr, "metric.epoch": lr}
        for lr in range(5)
    ]  # fmt: skip
    facts[0]["config.rare"] = 1
    assert called(page, "columns", code, facts) == ["config.lr", "config.opt", "metric.accuracy", "value.loss"]


def test_a_value_is_that_of_the_result_or_else_the_newest_and_says_which(page: Page) -> None:
    code = """(columns, facts) => {
      const by = columns.column("value.loss");
      return facts.map((each) => [by.value({ facts: each }), by.hint({ facts: each }) ?? null]);
    }"""
    facts: list[dict[str, float]] = [{"result.loss": 0.5, "metric.loss": 0.75}, {"metric.loss": 0.75}, {}]
    told = [[0.5, "of the result"], [0.75, "the newest value"], [None, None]]
    assert called(page, "columns", code, facts) == told


def test_groups_have_a_mean_and_a_spread(page: Page) -> None:
    code = """(columns, facts) => {
      const rows = facts.map((each) => ({ facts: each }));
      const value = columns.column("metric.loss");
      return columns.grouped(rows, columns.column("config.lr"))
        .map(([text, members]) => [text, columns.meanAndSpread(members, value)]);
    }"""
    facts = [
        {"config.lr": 1, "metric.loss": 2},
        {"config.lr": 1, "metric.loss": 4},
        {"config.lr": 3, "metric.loss": 5},
        {},
    ]
    assert called(page, "columns", code, facts) == [
        ["1", {"count": 2, "mean": 3, "spread": 2**0.5}],
        ["3", {"count": 1, "mean": 5, "spread": None}],
        ["-", None],
    ]


@pytest.mark.parametrize(
    ("values", "places", "is_log"),
    [
        ([1e-4, 1e-2, 1.0], [0, 0.5, 1], True),
        ([0, 5, 10], [0, 0.5, 1], False),
        (["b", "a", "c"], [0.5, 0, 1], None),
        ([3, 3], [0.5, 0.5], False),
    ],
)
def test_an_axis_fits_its_values(page: Page, values: list[Any], places: list[float], is_log: bool | None) -> None:
    code = """(drawings, values) => {
      const axis = drawings.axisOf(values);
      return [values.map(axis.at), axis.isLog ?? null];
    }"""
    found, log = called(page, "drawings", code, values)
    assert [round(each, 6) for each in found] == places
    assert log is is_log


def test_work_is_repeated_as_late_as_it_wants(page: Page) -> None:
    code = """async (source) => {
      const [real, waits] = [globalThis.setTimeout, []];
      globalThis.setTimeout = (go, ms) => { waits.push(ms); return real(go, 0); };
      const turn = source.paced(1000, async () => 1e6);
      await turn();
      await turn();
      globalThis.setTimeout = real;
      return waits;
    }"""
    at_once, later = called(page, "source", code)
    assert at_once == 0
    assert later > 1000


@pytest.mark.parametrize(("columns", "rows", "shown"), [(120_000, 2, 1000), (1000, 400, 1000), (3, 10, 3)])
def test_a_table_of_a_file_has_a_limit_of_cells(page: Page, columns: int, rows: int, shown: int) -> None:
    code = """(files, [columns, rows]) => {
      const found = files.tableOf(`${Array(columns).fill("x").join(",")}\n`.repeat(rows), ",", false);
      return [found.querySelectorAll("th, td").length, found.querySelectorAll("th").length, found.textContent];
    }"""
    cells, heads, text = called(page, "files", code, [columns, rows])
    assert heads == shown
    assert cells <= 21_000
    assert (" of 120" in text) is (columns > 1000)
