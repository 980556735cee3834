// Opens the view of an address: #/, #/run/RUN/TAB, #/curves?run=RUN, #/compare?run=RUN, #/diff/RUN/RUN, #/sweep/SWEEP.
import { fill, make } from "./dom.js";
import { showCompare } from "./compare.js";
import { showCurves } from "./curves.js";
import { showDiff } from "./diff.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";
import { showSweep } from "./sweep.js";

const VIEWS = new Map(Object.entries({ compare: showCompare, run: showRun, curves: showCurves, diff: showDiff, sweep: showSweep }));
const main = document.getElementById("main");
const link = document.getElementById("link");
let close = () => {};
let shown = ""; // the view and its subject; a view handles a change of the rest of the address itself
let turn = 0;

async function show() {
  if (!location.hash.startsWith("#/") && location.hash !== "") return; // a link to a place on the page
  const mine = (turn += 1);
  const [path, query] = location.hash.slice(2).split("?");
  const [name, ...words] = path.split("/").map(decodeURIComponent);
  const view = VIEWS.get(name) ?? showRuns;
  document.title = ["orch", name, ...words].filter(Boolean).join(" · ");
  const subject = `${name}/${words[0] ?? ""}`;
  if (subject === shown && close.move) {
    await close.move(words, new URLSearchParams(query));
    return;
  }
  close();
  close = () => {};
  shown = "";
  const place = make("div");
  try {
    const closing = await view(place, words, new URLSearchParams(query), (text) => { link.textContent = text; });
    if (mine !== turn) return closing();
    close = closing;
    shown = subject;
  } catch (error) {
    if (mine !== turn) return;
    fill(place, make("h1", {}, "This can't be shown"), make("p", { role: "alert" }, error.message),
      error.hint ? make("p", {}, error.hint) : null, make("p", {}, make("a", { href: "#/" }, "All runs")));
  }
  fill(main, place);
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
  main.dataset.shown = name || "runs";
}

addEventListener("hashchange", show);
show();
