"""The page in a real Chromium: each view, a run that goes on while it is watched, hostile words, other pages, keys."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.looking.state import state_of
from orchestrator.node.agent.sampling.ring_file import SampleFile
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.protocol.layout import samples_file
from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.runs.store import RunDir, append_line, create_run, live_runs
from orchestrator.web import files
from orchestrator.web.server import new_code
from tests.axe import violations
from tests.local.conftest import REPO, Orch
from tests.patience import PATIENCE
from tests.unit.views.runs_made import begin, end, make, tell

CHROMIUM = "/usr/bin/chromium"
OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP rebound.example 127.0.0.1",
)  # fmt: skip
if not os.path.exists(CHROMIUM):
    pytest.skip("there is no Chromium: python -m tests.testbed install", allow_module_level=True)

from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

expect.set_options(timeout=1000 * PATIENCE)
TABS = ("overview", "curves", "ranks", "system", "logs", "files", "config", "why")
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
# Writes a value of its loss for each file that a test puts beside it, and fails or ends when it is told to.
PROGRAM = """
import json, os, sys, time
steps = int(sys.argv[1])
print("<script>document.title='taken'</script>", flush=True)
print("needle in the hay", flush=True)
here = os.environ["GATES"]
for step in range(steps):
    while not os.path.exists(f"{here}/{step}"):
        time.sleep(0.02)
    if os.environ["RANK"] == "0":
        with open(os.environ["ORCH_METRICS_FILE"], "a") as file:
            line = {"kind": "train", "step": step, "loss": 1 / (step + 1), "attempt": 0, "time": time.time()}
            file.write(json.dumps(line) + "\\n")
    print(f"step {step} is done", flush=True)
if os.environ["RANK"] == "0":
    open(f"{here}/told", "w").close()
if steps == 3 and os.environ["RANK"] == "1":
    while not os.path.exists(f"{here}/told"):  # this failure ends rank 0
        time.sleep(0.02)
    raise RuntimeError("<b>the data</b> is not there")
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDir]:
    """Start the program above; the gates are files in the folder `gates` of its run's project."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "main.py").write_text(PROGRAM)

    def starts(orch: Orch, name: str, steps: int, *options: str, opened: int = 0) -> tuple[RunDir, Path]:
        gates = folder / name
        gates.mkdir()
        for step in range(opened):
            (gates / str(step)).touch()
        job = {
            "name": name,
            "script": "main.py",
            "args": [str(steps)],
            "env": {"GATES": str(gates)},
            "warm_imports": [],
        }
        (folder / f"{name}.yaml").write_text(json.dumps(job))
        run = orch.submit(str(folder / f"{name}.yaml"), "-p", "local", "--nproc-per-node", "2", *options)
        return run, gates

    return starts


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def orch(home: Path, bare_python: str) -> Iterator[Orch]:
    orch = Orch(home, REPO, bare_python)
    assert orch("ui", "--detach").code == 0
    yield orch
    assert orch("ui", "--stop").code == 0
    assert [orch("cancel", run.run_id, "--now").code for run in live_runs(home)] == []


@pytest.fixture(scope="module")
def failed(orch: Orch, start: Callable[..., tuple[RunDir, Path]]) -> RunDir:
    """A run of two ranks that has ended: rank 1 has failed with words that would be a tag."""
    run, _ = start(orch, "broken", 3, opened=3)
    assert orch("wait", run.run_id).code == 100
    return run


@pytest.fixture(scope="module")
def sweep(home: Path, orch: Orch) -> str:
    """A sweep of two points that have ended, one better than the other; its name would be a tag.

    The points are made elsewhere: a supervisor that met one without its verdict would write it one.
    """
    made = home.with_name("made")
    for index, loss in enumerate((0.25, 0.125)):
        point = {"id": "grid-222222", "index": index, "values": {"lr": f"0.{index}"}, "parallel": 1}
        record = {"name": HOSTILE, "kind": "local", "nnodes": 1, "hosts": ["localhost"], "profile_name": HOSTILE,
                  "created": 1000.0 + index, "sweep": point}  # fmt: skip
        record["job"] = {"metric": {"name": "loss", "better": "lower"}}
        run = create_run(made, f"grid-222222.{index}", record)
        for step in range(9):
            append_line(
                run.path / "metrics.jsonl",
                json.dumps({"kind": "train", "step": step, "loss": loss + 1 / (1 + step), "rate": step + 1.0}),
            )
        run.write("result.json", {"loss": loss})
        run.write("verdict.json", {**Verdict(Outcome.SUCCEEDED).to_json(), "ended": 2000.0})
        (home / "runs").mkdir(mode=0o700, exist_ok=True)
        run.path.rename(home / "runs" / run.path.name)
        append_line(home / "index", run.run_id)
    return "grid-222222"


@pytest.fixture
def page(browser: Browser, orch: Orch, home: Path) -> Iterator[Page]:
    """The page of a new session, which may neither fail nor break its own policy."""
    found = files.server_of(home)
    assert found is not None
    opening = files.write_opening(home, files.address_of(found[0], new_code(found[0])))
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.goto(opening.as_uri())
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.mark = said  # type: ignore[attr-defined]
    yield page
    context.close()
    assert said == []


def at(page: Page, place: str) -> None:
    """Go to a place of the page."""
    page.goto(f"{page.url.partition('#')[0]}#{place}")


def test_the_opening_file_works_once_and_leaves_no_code_behind(page: Page, home: Path) -> None:
    assert re.fullmatch(r"http://orch-[0-9a-f]{16}\.localhost:\d+/", page.url)
    again = page.context.new_page()
    again.goto((home / "ui" / "open.html").as_uri())
    expect(again.get_by_role("status")).to_have_text("this code was used before: run orch ui once more")
    assert "#" not in again.url
    again.close()
    for name in ("constructor", "__proto__", "toString"):  # no views, though JavaScript's objects have them
        at(page, f"/{name}/x")
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.reload()  # the session goes on
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


@pytest.mark.full("tests/local/test_page_in_browser.py::test_a_run_that_goes_on_is_watched_and_cancelled")
def test_runs_are_listed_and_filtered(page: Page, failed: RunDir, sweep: str) -> None:
    at(page, "/")
    page.reload()
    rows = page.locator("table.runs tbody tr")
    expect(rows.filter(has_text=failed.run_id).locator(".state")).to_have_text("failed")
    expect(rows.filter(has_text=f"{sweep}.1")).to_contain_text(HOSTILE)  # as words
    wanted = page.get_by_label("Filter")
    wanted.fill("BROKEN not there")
    expect(rows).to_have_count(1)
    expect(rows.locator(".place")).to_have_text(re.compile(r"rank 1 on node 0 \(.+\)"))
    wanted.fill("no such run")
    expect(page.get_by_text("No run passes this filter.")).to_be_visible()
    page.get_by_role("button", name="Clear the filter").click()
    wanted.fill("state:succeeded lr>0")
    expect(rows).to_have_count(1)
    wanted.fill("state:succeeded lrr>0")
    expect(page.get_by_role("alert")).to_have_text("No run has a column 'lrr'. Did you mean lr?")
    wanted.fill("state:succeeded")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="1 failed today").click()
    expect(wanted).to_have_value("state:failed ended:today")
    expect(rows).to_have_count(1)
    assert page.title() != "taken"


def tab(page: Page, name: str) -> None:
    """Open a tab of a run's page."""
    page.get_by_role("navigation", name="Views of the run").get_by_role("link", name=name, exact=True).click()
    expect(page.locator(f".tab[data-tab={name}]")).to_be_visible()


def test_a_run_that_failed_says_why_once_and_in_red(page: Page, failed: RunDir) -> None:
    at(page, f"/run/{failed.run_id}")
    why = page.get_by_role("region", name="Why")
    expect(why.get_by_label("Traceback")).to_contain_text("RuntimeError: <b>the data</b> is not there")
    expect(why).to_contain_text("Rank1Host")
    attempts = page.get_by_role("region", name="orch has not restarted this run").locator("tbody tr")
    expect(attempts).to_contain_text("the beginning")
    expect(attempts).to_contain_text("failed, as said above")
    expect(page.locator(".note.failure")).to_contain_text("rank 1")
    expect(page.locator(".tile").filter(has_text="State")).to_contain_text("failed")
    assert page.locator("#main").inner_text().count("RuntimeError: <b>the data") == 2  # the sentence and the traceback
    tab(page, "overview")
    assert page.url.endswith(f"#/run/{failed.run_id}/overview")
    attempt = page.locator(".timeline li").filter(has_text="attempt 0")
    expect(attempt.locator(".span.failed")).to_be_visible()
    expect(attempt.locator(".words")).to_contain_text("failed")
    expect(page.get_by_role("region", name="Ranks with trouble").locator("tbody tr")).to_have_count(1)
    tab(page, "ranks")
    ranks = page.get_by_role("region", name="Ranks", exact=True).locator("tbody tr")
    expect(ranks.first.locator(".state")).to_have_text("failed")
    tab(page, "config")
    page.get_by_label("Filter").fill("gates")
    expect(page.get_by_text("No setting has these words.")).to_be_visible()  # values of env are not shown
    page.get_by_label("Filter").fill("main.py")
    expect(page.get_by_role("region", name="1 of").locator("tbody tr")).to_have_count(1)
    page.go_back()  # each tab has its address
    expect(page.get_by_role("region", name="Step times by rank")).to_be_visible()
    assert page.title() != "taken"


def test_the_log_of_the_rank_that_failed_is_searched(page: Page, failed: RunDir) -> None:
    at(page, f"/run/{failed.run_id}/logs")
    log = page.get_by_label("Lines of the log")
    expect(log).to_contain_text("<script>document.title='taken'</script>")
    page.get_by_label("Search").fill("NEEDLE".lower())
    page.get_by_role("button", name="Next").click()
    expect(log.locator(".found")).to_have_text("needle in the hay")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("no other 'needle' after this")).to_be_visible()


def test_curves_are_chosen_arranged_scaled_and_saved(page: Page, home: Path, sweep: str) -> None:
    one, other = f"{sweep}.0", f"{sweep}.1"
    at(page, f"/run/{one}/curves")
    loss = page.get_by_role("region", name="loss", exact=True)
    expect(loss.locator(".uplot canvas")).to_be_visible()
    expect(loss.locator("tbody td")).to_have_text(["0.36111", "0.36111", "1.25", "9"])
    page.get_by_label("Add a run").fill(other)
    page.get_by_role("button", name="Add").click()
    expect(loss.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Baseline").select_option(one)
    expect(loss.locator("tbody tr").nth(1)).to_contain_text("-0.125 (-34.6 %)")
    loss.get_by_role("button", name="log").click()
    expect(loss.get_by_role("button", name="log")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("combobox", name="X").select_option("share")
    page.get_by_label("Smoothing").fill("0.5")
    for words in ("x=share", "smooth=0.5", "log=loss", f"with={other}", f"baseline={one}"):
        expect(page).to_have_url(re.compile(re.escape(words)))
    page.reload()  # the address has all choices
    expect(loss.locator("tbody tr").nth(1)).to_contain_text("-0.125 (-34.6 %)")
    order = page.locator(".panel h2")
    expect(order).to_have_text(["loss", "rate"])
    loss.get_by_label("More for loss").click()
    with page.expect_download() as saved:
        loss.get_by_role("button", name="Save as CSV").click()
    assert saved.value.suggested_filename == "loss.csv"
    rows = saved.value.path().read_text().splitlines()
    assert (rows[0], rows[1], len(rows)) == ("run,step,epoch,time,loss", f"{one},0,,,1.25", 19)
    with page.expect_download() as saved:
        loss.get_by_role("button", name="Save as SVG").click()
    drawing = ElementTree.fromstring(saved.value.path().read_text())  # noqa: S314 (the page has made it)
    assert len(drawing.findall("{http://www.w3.org/2000/svg}polyline")) == 4  # two smooth, two as written
    loss.get_by_role("button", name="Move right").click()
    expect(order).to_have_text(["rate", "loss"])
    loss.get_by_role("button", name="Hide").click()
    expect(order).to_have_text(["rate"])
    page.get_by_text("Panels (1 of 2)").click()
    page.get_by_role("checkbox", name="loss", exact=True).check()
    expect(order).to_have_text(["rate", "loss"])
    page.get_by_role("combobox", name="X").select_option("epoch")
    expect(page.get_by_text("These runs have written no epochs with 'loss'")).to_be_visible()


def test_the_panels_of_a_saved_view_open_with_every_run_of_the_job(page: Page, sweep: str) -> None:
    order = page.locator(".panel h2")
    at(page, f"/run/{sweep}.0/curves?show=rate&show=loss&x=epoch")
    expect(order).to_have_text(["rate", "loss"])
    page.get_by_role("button", name="Save view …").click()
    expect(page.get_by_role("textbox", name="Name")).to_have_value("grid")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("combobox", name="View").locator("option:checked")).to_have_text("grid")
    at(page, "/")
    at(page, f"/run/{sweep}.1/curves")
    expect(order).to_have_text(["rate", "loss"])
    expect(page.get_by_role("combobox", name="X")).to_have_value("epoch")
    page.get_by_role("combobox", name="View").select_option("the first panels")
    expect(order).to_have_text(["loss", "rate"])
    page.get_by_role("combobox", name="View").select_option("grid")
    expect(order).to_have_text(["rate", "loss"])
    page.get_by_role("button", name="Remove view").click()
    expect(page.get_by_role("combobox", name="View")).to_have_count(0)


def test_the_pointer_on_one_panel_tells_the_values_of_all(page: Page, sweep: str) -> None:
    at(page, f"/run/{sweep}.0/curves")
    loss, rate = (page.get_by_role("region", name=name, exact=True) for name in ("loss", "rate"))
    expect(rate.locator("thead th").nth(1)).to_have_text("last")
    expect(rate.locator(".uplot canvas")).to_be_visible()
    over = loss.locator(".u-over")
    over.hover(position={"x": 1, "y": 20})
    expect(rate.locator("thead th").nth(1)).to_have_text("at step 0")
    expect(rate.locator("tbody td").first).to_have_text("1")
    page.mouse.move(1, 1)
    expect(rate.locator("tbody td").first).to_have_text("9")
    expect(rate.locator("thead th").nth(1)).to_have_text("last")
    at(page, f"/run/{sweep}.0/curves?smooth=0.5")
    expect(loss.locator("thead th").nth(2)).to_have_text("smoothed")
    over.hover(position={"x": 1, "y": 20})
    expect(loss.locator("thead th").nth(1)).to_have_text("at step 0")
    expect(loss.locator("tbody td").nth(1)).to_have_text("1.25")
    over.hover(position={"x": over.bounding_box()["width"] - 1, "y": 20})  # type: ignore[index]
    expect(loss.locator("thead th").nth(1)).to_have_text("at step 8")
    expect(loss.locator("tbody td").first).to_have_text("0.36111")
    expect(loss.locator("tbody td").nth(1)).not_to_have_text("0.36111")


def test_a_zoom_and_the_pointer_stay_when_values_come_until_the_zoom_is_reset(page: Page, home: Path) -> None:
    run = create_run(home, "zoomed-222222", {"kind": "local", "nnodes": 1, "hosts": ["localhost"], "created": 1000.0})

    def write(steps: range) -> None:
        for step in steps:
            for kind, name in (("train", "loss"), ("eval", "accuracy")):
                line = {"kind": kind, "step": step, name: 1 / (1 + step), "time": 1000.0 + step}
                append_line(run.path / "metrics.jsonl", json.dumps(line))

    write(range(9))
    append_line(run.path / "events.jsonl", json.dumps({"kind": "submitted", "time": 1000.0}))
    at(page, "/run/zoomed-222222/curves")
    loss, accuracy = (page.get_by_role("region", name=name, exact=True) for name in ("loss", "accuracy"))
    heads = [each.locator("thead th").nth(1) for each in (loss, accuracy)]
    over = loss.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2 - 2, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 30, steps=4)
    page.mouse.up()
    over.hover(position={"x": 1, "y": 30})
    for head in heads:
        expect(head).to_have_text("at step 4")  # all panels are zoomed
    write(range(9, 12))
    for panel, head in zip((loss, accuracy), heads, strict=True):
        expect(panel.locator("tbody td").nth(3)).to_have_text("12")
        expect(head).to_have_text("at step 4")
    page.get_by_role("button", name="log", exact=True).first.click()
    over.hover(position={"x": 1, "y": 30})
    expect(heads[0]).to_have_text("at step 4")
    page.get_by_role("button", name="Reset zoom").click()
    over.hover(position={"x": 1, "y": 30})
    for head in heads:
        expect(head).to_have_text("at step 0")


def test_a_curve_marks_where_a_restart_began(page: Page, home: Path) -> None:
    run = make(home, "again-222222")
    begin(run, at=1000.0)
    tell(run, 0, "restart", 1005.0, attempt=1, cause="infra")
    begin(run, attempt=1, at=1005.5)
    for step in range(9):
        line = {"kind": "train", "step": step, "loss": 1 / (1 + step), "time": 1000.0 + step}
        append_line(run.path / "metrics.jsonl", json.dumps(line))
    end(run, Verdict(Outcome.SUCCEEDED, attempt=1), at=1010.0)
    at(page, "/run/again-222222/curves")
    loss = page.get_by_role("region", name="loss", exact=True)
    expect(loss.get_by_text("attempt 1 began at step 6")).to_be_visible()
    page.get_by_role("combobox", name="X").select_option("time")
    expect(loss.get_by_text("attempt 1 began at 6.0 s")).to_be_visible()


def test_a_run_that_goes_on_is_watched_and_cancelled(
    page: Page, orch: Orch, start: Callable[..., tuple[RunDir, Path]]
) -> None:
    at(page, "/")
    run, gates = start(orch, "live", 9, opened=4)
    row = page.locator("table.runs tbody tr").filter(has_text=run.run_id)
    expect(row.locator(".state")).to_have_text("running")  # it came by itself
    expect(row.get_by_role("img", name=re.compile("^loss by step, from 1 to 0.25; .*fallen by 25 %"))).to_be_visible()
    row.get_by_role("link", name=run.run_id).click()
    expect(page.locator(".live.on")).to_contain_text("live")
    values = page.get_by_role("region", name="loss").locator("tbody td").nth(3)
    expect(values).to_have_text("4")
    expect(page.locator(".tile .trend")).to_contain_text("▼ 25 % in 1 step")
    (gates / "4").touch()
    expect(values).to_have_text("5")
    tab(page, "logs")
    log = page.get_by_label("Lines of the log")
    expect(log).to_contain_text("step 4 is done")
    (gates / "5").touch()
    expect(log).to_contain_text("step 5 is done")
    tab(page, "ranks")
    expect(page.get_by_text("No step time is known yet.").first).to_be_visible()
    tab(page, "system")
    newest = page.get_by_role("region", name="The newest numbers")
    expect(newest.get_by_role("region", name="Ranks").locator("tbody tr")).to_have_count(2)
    memory = page.get_by_role("region", name="memory, of its node")
    expect(memory.locator(".uplot canvas")).to_be_visible()
    expect(memory.locator(".entry")).to_have_count(2)
    memory.get_by_role("button", name="map").click()
    map_of_memory = memory.locator(".heat canvas")
    expect(map_of_memory).to_have_attribute("aria-label", re.compile("^memory, of its node of 2 rows of ranks"))
    map_of_memory.press("ArrowDown")
    expect(memory.get_by_role("status")).to_contain_text("rank 1, ")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="No", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not state_of(run).is_final
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator("h1 .state")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    expect(page.locator(".live.on")).to_have_count(0)
    assert state_of(run).state == "cancelled"


def test_the_slowest_rank_is_named_above_the_map(page: Page, failed: RunDir) -> None:
    samples = SampleFile(samples_file(str(failed.node(0))))
    for moment in range(6):
        ranks = tuple(
            RankSample(rank, phase="train", step=20 * moment, waited=0.6 * rank,
                       step_seconds=9.0 if moment == 0 else 0.1 * (1 + rank))
            for rank in range(2)
        )  # fmt: skip
        samples.append(Sample(time=100.0 + 2 * moment, seconds=2.0, cores=2, memory_total=100.0, ranks=ranks))
    at(page, f"/run/{failed.run_id}/ranks")
    expect(page.get_by_role("region", name="Pace")).to_contain_text(
        re.compile(r"Rank 1 on \S+ is slowest: a step takes 200 ms, \+100 % over the median .*its loader 60 % of")
    )
    by_rank = page.get_by_role("region", name="Step times by rank")
    expect(by_rank).to_contain_text("first steps of an attempt, not in the scale")
    expect(by_rank.locator("canvas")).to_have_attribute("aria-label", re.compile("2 rows of ranks.*to 200 ms"))
    expect(page.get_by_role("img", name=re.compile("Histogram of step times from 100 ms to 200 ms"))).to_be_visible()


def test_outputs_are_shown_and_no_file_is_a_page(page: Page, home: Path) -> None:
    run = create_run(
        home.with_name("made"),
        "files-222222",
        {"name": "files", "kind": "ssh", "nnodes": 1, "hosts": ["n1"], "created": 1000.0},
    )
    run.write("plan.json", {"job": {}, "tasks": [{}]})
    outputs = run.path / "outputs"
    (outputs / "plots").mkdir(parents=True)
    script = '<script>parent.document.title="taken"</script>'
    drawing = f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="7">{script}</svg>'
    (outputs / "plots" / "a.svg").write_text(drawing)
    (outputs / "report.html").write_text("<script>document.title='taken'</script>")
    (outputs / "table.csv").write_text('name,"a, b"\n"x ""y""",2\n')
    (outputs / "facts.json").write_text('{"a":[1]}')
    (outputs / "weights.bin").write_bytes(bytes(99))
    (outputs / "long.txt").write_text("0123456\n" * 40_000)
    run.write("verdict.json", {**Verdict(Outcome.SUCCEEDED).to_json(), "ended": 2000.0})
    run.path.rename(home / "runs" / run.path.name)
    append_line(home / "index", run.run_id)
    at(page, "/run/files-222222/files")
    shown = page.locator(".viewer")
    for name, words in {
        "report.html": "<script>document.title='taken'</script>",
        "facts.json": '"a": [',
        "weights.bin": "This file is not text",
        "table.csv": 'x "y"',
    }.items():
        page.get_by_role("button", name=name).click()
        expect(shown).to_contain_text(words)
    expect(shown.locator("th").nth(1)).to_have_text("a, b")
    page.get_by_role("button", name="a.svg").click()
    picture = shown.locator("img")
    expect(picture).to_have_attribute("src", re.compile("^blob:"))
    page.wait_for_function("document.querySelector('.viewer img').naturalWidth === 9")
    page.get_by_role("button", name="long.txt").click()
    page.get_by_role("button", name="Show more").click()
    expect(shown.get_by_role("button", name="Show more")).to_be_hidden()
    assert len(shown.get_by_label("Contents").inner_text()) > 300_000
    assert page.title() != "taken"
    shutil.rmtree(home / "runs" / run.run_id)


@pytest.mark.full(
    "tests/local/test_results.py::test_a_run_repeated_compared_and_bundled",
    "tests/local/test_page_in_browser.py::test_a_run_that_goes_on_is_watched_and_cancelled",
)
def test_a_run_is_repeated_and_pulled(page: Page, orch: Orch, failed: RunDir, tmp_path: Path) -> None:
    at(page, f"/run/{failed.run_id}")
    page.get_by_role("button", name="Pull").click()
    page.get_by_role("textbox", name="Folder").fill("results")
    with page.expect_console_message(lambda message: "400" in message.text):  # which the browser says of itself
        page.get_by_role("button", name="Yes").click()
    expect(page.get_by_role("alert")).to_contain_text("has to be an absolute path")
    page.mark.clear()  # type: ignore[attr-defined]
    page.get_by_role("button", name="Pull").click()
    page.get_by_role("textbox", name="Folder").fill(str(tmp_path / "results"))
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_text(re.compile(r"copied \d+ files to "))).to_be_visible()
    assert (tmp_path / "results" / "metrics.jsonl").exists()
    page.get_by_role("button", name="Repeat").click()
    page.get_by_role("button", name="Yes").click()
    page.get_by_text(re.compile("submitted broken-")).get_by_role("link").click()
    again = page.locator("h1")
    expect(again).to_contain_text("broken-")
    expect(again.locator(".state")).to_have_text("failed")
    tab(page, "overview")  # the page of a run that has failed before it is opened begins at the tab why
    expect(page.get_by_text("Repeats")).to_be_visible()


@pytest.mark.full(
    "tests/local/test_sweeps.py::test_the_points_run_one_after_another_and_are_ranked",
    "tests/local/test_page_in_browser.py::test_a_run_that_failed_says_why_once_and_in_red",
)
def test_a_sweep_shows_its_best_point_and_two_runs_differ(page: Page, sweep: str) -> None:
    at(page, f"/sweep/{sweep}")
    points = page.get_by_role("region", name="Points by loss, the lowest first").locator("tbody tr")
    expect(points.first).to_contain_text("1 (best)")
    expect(points.first).to_contain_text(f"{sweep}.1")
    page.get_by_role("region", name="loss", exact=True).scroll_into_view_if_needed()
    expect(page.get_by_role("region", name="loss", exact=True).locator("tbody tr")).to_have_count(2)  # two curves
    expect(page.locator(".drawing polyline.best")).to_have_count(2)  # the best run, and the best so far
    expect(page.get_by_text("Best of 2 runs: loss 0.125 with lr=0.1.")).to_be_visible()
    at(page, "/")
    for point in (0, 1):
        page.get_by_label(f"choose {sweep}.{point}").check()
    page.get_by_role("button", name="Compare 2").click()
    page.get_by_label("Show").select_option("all columns")
    differs = page.get_by_role("region", name="Runs side by side").locator("tbody tr")
    expect(differs.filter(has_text="memory of a rank, at most")).to_be_visible()
    expect(differs.filter(has_text="config.lr")).to_contain_text("0.1")
    page.go_back()
    for point in (0, 1):
        page.get_by_label(f"choose {sweep}.{point}").check()
    page.get_by_role("button", name="Diff").click()
    expect(page.get_by_role("region", name="What differs").locator("tbody tr").first).to_be_visible()
    page.get_by_role("link", name="Curves of both").click()
    expect(page.get_by_role("region", name="loss", exact=True).locator("tbody tr")).to_have_count(2)


@pytest.mark.full("tests/local/test_page_in_browser.py::test_a_run_that_failed_says_why_once_and_in_red")
def test_the_keyboard_alone_comes_everywhere(page: Page, failed: RunDir, sweep: str) -> None:
    page.reload()
    expect(page.locator("table.runs tbody tr").first).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("/")
    expect(page.get_by_label("Filter")).to_be_focused()
    page.keyboard.type("not there")
    expect(page.locator("table.runs tbody tr").filter(has_text=failed.run_id)).to_be_visible()
    focused = page.locator(":focus")
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused.inner_text() == failed.run_id:
            break
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("broken-")
    page.get_by_role("button", name="Pull").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.full(
    "tests/unit/web/test_colours.py",
    "tests/local/test_page_in_browser.py::test_a_run_that_failed_says_why_once_and_in_red",
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_view_fits_a_phone(page: Page, failed: RunDir, sweep: str, scheme: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    tabs = [f"/run/{failed.run_id}/{name}" for name in TABS]
    for place in ("/", *tabs, f"/sweep/{sweep}", f"/diff/{sweep}.0/{sweep}.1"):
        at(page, place)
        expect(page.locator("h1")).to_be_visible()
        if place in tabs:
            expect(page.locator(f".tab[data-tab={place.rpartition('/')[2]}]")).to_be_visible()
        box = page.locator("body").bounding_box()
        wide = page.locator("html").bounding_box()
        assert box is not None
        assert wide is not None
        assert max(box["width"], wide["width"]) <= 360


@pytest.mark.full("tests/unit/web/test_app.py", "tests/local/test_page_scripts.py")
def test_the_table_has_the_columns_groups_and_views_that_the_user_chooses(
    page: Page, failed: RunDir, sweep: str
) -> None:
    at(page, "/")
    heads = page.locator("table.runs thead th")
    expect(heads.filter(has_text="Profile")).to_be_visible()
    page.get_by_role("button", name="Help").click()
    expect(page.get_by_role("dialog")).to_contain_text("tag:ablation")
    assert violations(page, ".curves") == []
    page.get_by_role("button", name="Close").click()
    rows = page.locator("table.runs tbody tr")
    rows.first.get_by_role("link").first.focus()
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1).get_by_role("link").first).to_be_focused()
    page.get_by_role("button", name="Columns …").click()
    columns = page.get_by_role("dialog", name="Columns")
    columns.get_by_label("Profile").uncheck()
    columns.get_by_label("loss").first.check()
    columns.get_by_role("button", name="Done").click()
    expect(heads.filter(has_text="Profile")).to_have_count(0)
    page.get_by_label("Filter").fill("sweep:grid")
    page.get_by_role("button", name="loss").first.click()
    expect(heads.filter(has_text="loss ↓")).to_have_attribute("aria-sort", "descending")
    expect(rows.first).to_contain_text(f"{sweep}.0")
    page.get_by_role("button", name="loss").first.click()
    expect(rows.first).to_contain_text(f"{sweep}.1")
    page.get_by_label("Group by").select_option("sweep")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("0.1875 ± 0.088")
    page.get_by_role("button", name=f"{sweep} (2)").press("Enter")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Save view …").click()
    page.get_by_role("textbox", name="Name").fill("<b>mine</b>")
    page.get_by_role("button", name="Save", exact=True).click()
    view = page.get_by_role("combobox", name="View")
    expect(view.locator("option:checked")).to_have_text("<b>mine</b>")
    view.select_option("all runs")
    expect(page.get_by_label("Filter")).to_have_value("")
    view.select_option("<b>mine</b>")
    expect(page.get_by_label("Filter")).to_have_value("sweep:grid")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Remove view").click()
    expect(view).to_have_count(0)


@pytest.mark.full("tests/unit/web/test_app.py", "tests/unit/cli/test_labels.py")
def test_tags_and_a_note_are_set_on_the_page_and_elsewhere(page: Page, orch: Orch, failed: RunDir) -> None:
    at(page, "/")
    row = page.locator("table.runs tbody tr").filter(has_text=failed.run_id)
    row.get_by_role("button", name=f"tags and note of {failed.run_id}").click()
    page.get_by_label("Tags", exact=True).fill("ablation, base")
    page.get_by_label("Note", exact=True).fill(HOSTILE)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(row.locator(".tag")).to_have_text(["ablation", "base"])
    assert orch("tag", failed.run_id).out == f"{failed.run_id}: ablation, base\n"
    assert orch("note", failed.run_id).out == f"{HOSTILE}\n"
    assert orch("tag", failed.run_id, "-base", "+late").code == 0
    expect(row.locator(".tag")).to_have_text(["ablation", "late"])  # by itself
    page.get_by_label("Filter").fill('tag:late "onerror"')
    expect(row).to_be_visible()
    row.get_by_role("button", name="tags and note").click()
    page.get_by_label("Tags", exact=True).fill("x" * 41)
    with page.expect_console_message(lambda message: "400" in message.text):  # which the browser says of itself
        page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("more than 40 characters")
    page.mark.clear()  # type: ignore[attr-defined]
    page.keyboard.press("Escape")
    at(page, f"/run/{failed.run_id}")  # the run's page has the same
    expect(page.locator(".labels-of .tag")).to_have_text(["ablation", "late"])
    expect(page.locator(".labels-of")).to_contain_text(HOSTILE)
    page.get_by_role("button", name=f"tags and note of {failed.run_id}").click()
    page.get_by_label("Tags", exact=True).fill("late here")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".labels-of .tag")).to_have_text(["late", "here"])
    assert orch("tag", failed.run_id, "-here").code == 0
    expect(page.locator(".labels-of .tag")).to_have_text(["late"])  # by itself
    assert orch("tag", failed.run_id, "-late").code == 0
    assert orch("note", failed.run_id, "").code == 0
    assert page.title() != "taken"


@pytest.mark.full("tests/unit/web/test_colours.py")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_from_using_the_views_of_runs(page: Page, failed: RunDir, sweep: str, scheme: str) -> None:
    both = f"run={sweep}.0&run={sweep}.1"
    places = ("/", "/?group=state", "/?filter=lr>", "/?filter=nothing", f"/sweep/{sweep}", f"/compare?{both}",
              "/compare", f"/diff/{sweep}.0/{sweep}.1")  # fmt: skip
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    for width in (390, 768, 1400, 2560):
        page.set_viewport_size({"width": width, "height": 900})
        for place in places:
            at(page, place)
            expect(page.locator("h1")).to_be_attached()
            expect(page.get_by_text("Loading …")).to_have_count(0)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, place)
            assert violations(page, ".curves") == [], (width, place)


@pytest.mark.full("tests/unit/web/test_colours.py")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_from_using_the_tabs_of_a_run(
    page: Page, orch: Orch, failed: RunDir, sweep: str, scheme: str
) -> None:
    point = f"{sweep}.0"  # it has a trend, a tag, a note and panels
    assert orch("tag", point, "+ablation").code == 0
    assert orch("note", point, "the paper's settings").code == 0
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    for width in (390, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        for run, name in [*((failed.run_id, each) for each in TABS), (point, "overview"), (point, "curves")]:
            at(page, f"/run/{run}/{name}")
            expect(page.locator("h1")).to_contain_text(run)
            expect(page.locator(f".tab[data-tab={name}]")).to_be_visible()
            if name in ("overview", "curves", "system"):  # the panels that are in view are drawn
                expect(page.locator(".panel .said > *, .panel .plot > *, .tab .empty").first).to_be_attached()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, run, name)
            assert violations(page) == [], (width, run, name)
        expect(page.locator(".tile .trend")).to_contain_text("%")
        expect(page.locator(".labels-of .tag")).to_have_text(["ablation"])
        page.get_by_role("button", name=f"tags and note of {point}").click()
        assert violations(page) == [], (width, "tags and note")
        page.keyboard.press("Escape")
        page.get_by_text("Panels (").click()
        assert violations(page) == [], (width, "the choice of panels")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Save view …").click()
        assert violations(page) == [], (width, "save a view")
        page.get_by_role("textbox", name="Name").fill("of axe")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("combobox", name="View").locator("option:checked")).to_have_text("of axe")
        assert violations(page) == [], (width, "a saved view")
        page.get_by_role("button", name="Remove view").click()
        expect(page.get_by_role("combobox", name="View")).to_have_count(0)


class Elsewhere(BaseHTTPRequestHandler):
    """Another user's page on this machine, which asks orch's server in the reader's browser."""

    target = ""
    asked: list[str]

    def do_GET(self) -> None:
        body = f"""<!doctype html><title>other</title><p id=said>asking</p><script>
        const told = [];
        const all = [["/api/runs", {{}}], ["/api/runs", {{headers: {{"X-Orch-Session": "x"}}}}],
          ["/api/runs/x/cancel", {{method: "POST", body: "{{}}"}}]];
        Promise.all(all.map(([path, how]) => fetch("{self.target}" + path, {{credentials: "include", ...how}})
            .then(() => "answered", () => "refused")))
          .then((said) => {{ document.getElementById("said").textContent = said.join(); }});
        </script><iframe src="{self.target}/"></iframe>"""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_another_page_in_the_same_browser_learns_nothing(page: Page) -> None:
    Elsewhere.target = page.url.rstrip("/#")
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            other = page.context.new_page()
            other.goto(f"http://127.0.0.1:{server.server_address[1]}/")
            expect(other.locator("#said")).to_have_text("refused,refused,refused")
            expect(other.frame_locator("iframe").get_by_role("heading", name="Runs")).to_have_count(0)
            other.close()
        finally:
            server.shutdown()
            thread.join()


class Squatter(BaseHTTPRequestHandler):
    """Another user's server at the port, while orch has none there: it leaves a service worker in the browser."""

    def do_GET(self) -> None:
        worker = """
        self.addEventListener("install", () => self.skipWaiting());
        self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
        self.addEventListener("fetch", (event) => event.respondWith(new Response("taken")));
        """
        page = """<!doctype html><title>other</title><p id=said>planting</p><script>
        navigator.serviceWorker.register("/worker.js").then(() => navigator.serviceWorker.ready).then(() => {
          document.cookie = "orch_ui=taken; domain=localhost";
          document.getElementById("said").textContent = "planted";
        });
        </script>"""
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if self.path == "/worker.js" else "text/html")
        self.end_headers()
        self.wfile.write((worker if self.path == "/worker.js" else page).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_what_another_has_served_at_the_port_before_sees_nothing_of_the_page(browser: Browser, tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    with browser.new_context() as context:
        page = context.new_page()
        with ThreadingHTTPServer(("127.0.0.1", 0), Squatter) as server:
            thread, port = threading.Thread(target=server.serve_forever), server.server_address[1]
            thread.start()
            places = [f"http://{host}:{port}/" for host in ("127.0.0.1", "localhost", "orch.localhost")]
            for place in places:
                page.goto(place)
                expect(page.locator("#said")).to_have_text("planted")
            server.shutdown()
            thread.join()
        assert orch("ui", "--detach", "--port", str(port)).code == 0
        try:
            page.goto((orch.home / "ui" / "open.html").as_uri())
            expect(page.get_by_text("No runs yet")).to_be_visible()
            page.reload()
            expect(page.get_by_text("No runs yet")).to_be_visible()
            for place in places:
                page.goto(place)
                expect(page.locator("body")).to_have_text("taken")  # the worker is there
        finally:
            assert orch("ui", "--stop").code == 0


def test_another_name_for_this_machine_is_refused(page: Page) -> None:
    port, said = page.url.rpartition(":")[2].strip("/#"), "this server answers at its own address alone"
    page.goto("about:blank")  # the browser names each refusal on a console: not on this page's
    with page.context.browser.new_context() as context:  # type: ignore[union-attr]
        other = context.new_page()
        for host in ("rebound.example", "127.0.0.1", "localhost", "orch-0.localhost"):
            other.goto(f"http://{host}:{port}/enter")
            expect(other.locator("body")).to_contain_text(said)
        assert other.evaluate("fetch('/api/runs').then((answer) => answer.status)") == 421


def test_odd_cookies_of_other_programs_are_no_hindrance(page: Page) -> None:
    for cookie in ('state={"a": [1, 2]}', "a[0]=,", "é=ü"):
        page.evaluate("(cookie) => { document.cookie = cookie; }", cookie)
    assert page.evaluate("document.cookie").count(";") == 2
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


@pytest.mark.full("tests/local/test_page_in_browser.py::test_a_run_that_failed_says_why_once_and_in_red")
def test_exported_pages_need_no_server(
    browser: Browser, orch: Orch, failed: RunDir, sweep: str, tmp_path: Path
) -> None:
    folder = tmp_path / "pages"
    measured = Sample(time=9.0, seconds=2.0, cores=2, memory_total=100.0, ranks=(RankSample(1, cpu=0.25, memory=50.0),))
    SampleFile(samples_file(str(failed.node(0)))).append(measured)
    done = orch("ui", "--export", str(folder), failed.run_id, sweep)
    assert done.err == f"wrote 3 runs: open {folder / 'index.html'}\n"
    said: list[str] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.goto((folder / "index.html").as_uri())
        expect(page.locator("table.runs tbody tr")).to_have_count(3)
        page.get_by_role("link", name=failed.run_id).click()
        expect(page.get_by_label("Traceback")).to_contain_text("<b>the data</b> is not there")
        tab(page, "curves")
        expect(page.locator(".uplot canvas").first).to_be_visible()
        page.get_by_label("Smoothing").fill("0.5")
        expect(page.locator(".uplot canvas").first).to_be_visible()
        tab(page, "system")
        expect(page.get_by_role("region", name="memory, of its node").locator(".uplot canvas")).to_be_visible()
        expect(page.get_by_role("region", name="Ranks", exact=True)).to_contain_text("25 %")
        tab(page, "logs")
        expect(page.get_by_label("Lines of the log")).to_contain_text("needle in the hay")
        page.get_by_role("combobox", name="Rank").select_option("0")
        expect(page.get_by_text("rank 0, attempt 0")).to_be_visible()
        expect(page.get_by_role("button", name="Repeat")).to_have_count(0)
        page.goto(f"{(folder / 'index.html').as_uri()}#/sweep/{sweep}")
        page.get_by_role("region", name="loss", exact=True).scroll_into_view_if_needed()
        expect(page.get_by_role("region", name="loss", exact=True).locator("tbody tr")).to_have_count(2)
        three = "&".join(f"run={each}" for each in (failed.run_id, f"{sweep}.0", f"{sweep}.1"))
        page.goto(f"{(folder / 'index.html').as_uri()}#/compare?{three}")
        page.get_by_role("region", name="loss", exact=True).scroll_into_view_if_needed()
        expect(page.get_by_role("region", name="loss", exact=True).locator("tbody tr")).to_have_count(3)
        page.get_by_role("region", name="rate", exact=True).scroll_into_view_if_needed()
        expect(page.get_by_role("region", name="rate", exact=True).locator("tbody tr")).to_have_count(2)
        page.goto(f"{(folder / 'index.html').as_uri()}#/diff/{sweep}.0/{sweep}.1")
        expect(page.get_by_role("region", name="What differs").locator("tbody tr").first).to_be_visible()
        assert page.title() != "taken"
    assert said == []
    assert orch("ui", "--export", str(folder)).code == 2  # it holds something


@pytest.mark.full(
    "tests/unit/web/test_access.py",
    "tests/local/test_page.py::test_all_but_the_entrance_asks_for_a_session",
)
def test_a_session_that_is_unknown_is_told_what_to_do(browser: Browser, page: Page) -> None:
    where, told = page.url, "no session: open the page by orch ui"
    page.goto("about:blank")  # the browser names each 401 on a console, at a moment of its own: not on this page's
    with browser.new_context() as context:
        stranger = context.new_page()
        stranger.goto(where)
        expect(stranger.locator("body")).to_have_text(told)
    forgotten = page.context.new_page()
    forgotten.goto(where)
    expect(forgotten.get_by_role("heading", name="Runs")).to_be_visible()
    page.context.clear_cookies()
    forgotten.reload()
    expect(forgotten.locator("body")).to_have_text(told)


@pytest.mark.full(
    "tests/unit/web/test_watcher.py",
    "tests/local/test_page_in_browser.py::test_a_run_that_goes_on_is_watched_and_cancelled",
)
def test_rows_come_as_they_are_scrolled_to_and_stay_known(browser: Browser, tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    for number in range(300):
        record = {"name": "many", "kind": "local", "nnodes": 1, "hosts": ["localhost"], "created": 1000.0 + number}
        run = create_run(tmp_path / "made", f"many-{number:06}", record)
        run.write("verdict.json", {**Verdict(Outcome.SUCCEEDED).to_json(), "ended": 2000.0})
    (run.path / "run.json").write_text("[]")
    orch.home.mkdir(mode=0o700)
    (tmp_path / "made" / "runs").rename(orch.home / "runs")
    assert orch("ui", "--detach").code == 0
    try:
        with browser.new_context(viewport={"width": 1100, "height": 800}) as context:
            page = context.new_page()
            page.goto((orch.home / "ui" / "open.html").as_uri())
            rows = page.locator("table.runs tbody tr")
            expect(page.get_by_text("300 of 300 runs")).to_be_visible()
            expect(rows).to_have_count(40)
            for count in (80, 120):
                page.mouse.move(500, 500)
                rows.last.scroll_into_view_if_needed()
                expect(rows).to_have_count(count)
            page.get_by_label("Filter").fill("many-000299")
            expect(rows).to_have_count(1)
            rows.get_by_role("link").click()
            expect(page.get_by_role("alert").first).to_contain_text("run.json does not contain a JSON object")
            page.get_by_role("link", name="Runs").click()
            expect(page.get_by_text("300 of 300 runs")).to_be_visible()
    finally:
        assert orch("ui", "--stop").code == 0


@pytest.mark.full("tests/local/test_page.py::test_a_server_that_is_gone_is_forgotten")
def test_a_server_that_is_gone_is_said(browser: Browser, tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    assert orch("ui", "--detach").code == 0
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((orch.home / "ui" / "open.html").as_uri())
        expect(page.get_by_text("No runs yet")).to_be_visible()
        assert orch("ui", "--stop").code == 0
        expect(page.get_by_text("The server does not answer. This is the data that it sent last.")).to_be_visible()
    shutil.rmtree(orch.home)
