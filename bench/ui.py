"""The page of `orch ui`, timed: its answers over HTTP and views drawn in Chromium; 2,000 runs, one of 1,000 ranks."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pairs import Load
from playwright.sync_api import expect, sync_playwright
from views import ROUNDS, RUNS, filled, show, timed, write_beats

from orchestrator.web import files
from orchestrator.web.server import new_code

CHROMIUM = "/usr/bin/chromium"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        root, load = Path(folder), Load()
        live = filled(root)
        orch = [sys.executable, "-m", "orchestrator.cli", "ui"]
        environment = {**os.environ, "ORCH_HOME": folder}
        subprocess.run([*orch, "--detach", "--no-open"], env=environment, check=True, capture_output=True)
        try:
            answers(root, live.run_id, load)
            drawn(root, live.run_id, lambda step: write_beats(live, step), load)
        finally:
            subprocess.run([*orch, "--stop"], env=environment, check=True, capture_output=True)


def answers(root: Path, live: str, load: Load) -> None:
    """Time what the page asks for."""
    found = files.server_of(root)
    assert found is not None
    server = found[0]
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    host = f"{server.name}:{server.port}"
    origin = {"Origin": f"http://{host}"}

    def ask(method: str, path: str, body: str | None = None, **headers: str) -> http.client.HTTPResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Host": host, **sent})
        answer = connection.getresponse()
        answer.text = answer.read()  # type: ignore[attr-defined]
        assert answer.status == 200, answer.text  # type: ignore[attr-defined]
        return answer

    entered = ask("POST", "/enter", json.dumps({"code": new_code(server)}), **origin)
    token = json.loads(entered.text)["token"]  # type: ignore[attr-defined]
    session = {"Host": host, "Cookie": str(entered.getheader("set-cookie")).partition(";")[0], "X_Orch_Session": token}
    show("page: 2,000 runs, the first time", 5000, [timed(lambda: ask("GET", "/api/runs", **session))], load)
    run = f"/api/runs/{live}"
    paths = {"2,000 runs": "/api/runs", "a run of 1,000 ranks": run}
    paths |= {
        "its ranks": f"{run}/ranks",
        "its map of step times": f"{run}/step_times",
        "its slowest rank": f"{run}/pace",
    }
    for what, path in paths.items():
        ask("GET", path, **session)
        looks = [timed(partial(ask, "GET", path, **session)) for _ in range(ROUNDS)]
        show(f"page: {what}", 100, looks, load)


def drawn(root: Path, live: str, step: Callable[[int], None], load: Load) -> None:
    """Time the views in a browser, from the click to the words on the page, the answers included.

    At the end, three pages stay open while all ranks write heartbeats, and the server's processor time is measured.
    """
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context().new_page()
        found = files.server_of(root)
        assert found is not None
        address = files.address_of(found[0], new_code(found[0]))
        page.goto(files.write_opening(root, address).as_uri())
        count = page.get_by_text(f"{RUNS + 1:,} of {RUNS + 1:,} runs")
        count.wait_for()
        main_shown = page.locator("#main[data-shown=run]")
        there, back = list[float](), list[float]()
        for _ in range(ROUNDS // 2):
            begun = time.perf_counter()
            page.get_by_role("link", name=live).first.click()
            main_shown.wait_for()
            there.append(1000 * (time.perf_counter() - begun))
            begun = time.perf_counter()
            page.get_by_role("link", name="Runs").click()
            count.wait_for()
            back.append(1000 * (time.perf_counter() - begun))
        show("browser: 2,000 runs, click to table", 200, back, load)
        show("browser: a run of 1,000 ranks, click to page", 200, there, load)
        typed = []
        for word in ("train7", "train11", ""):
            wanted = RUNS // 40 if word == "train11" else None
            begun = time.perf_counter()
            page.get_by_label("Filter").fill(word)
            (page.get_by_text(f"{wanted} of") if wanted else page.locator("table.runs tbody tr").first).wait_for()
            typed.append(1000 * (time.perf_counter() - begun))
        show("browser: 2,000 runs filtered", 50, typed, load)
        places = (f"#/run/{live}/overview", f"#/run/{live}/ranks")
        opened = [page, *(page.context.new_page() for _ in places)]
        for other, place in zip(opened[1:], places, strict=True):
            other.goto(page.url.partition("#")[0] + place)
            other.locator("#main[data-shown=run]").wait_for()
        shares = [processor_share(found[0].pid, step, 1000 + 10 * number) for number in range(3)]
        show("server: processor time, 3 pages open (% of a core)", 5, shares, load, unit="%")
        browser.close()


def processor_share(pid: int, step: Callable[[int], None], first: int) -> float:
    """Return the percentage of a core that a process used for ten seconds, in which the ranks made a step a second."""

    def ticks() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    begun, before = time.monotonic(), ticks()
    for number in range(10):
        step(first + number)
        time.sleep(1)
    return 100 * (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begun)


if __name__ == "__main__":
    sys.exit(main())
