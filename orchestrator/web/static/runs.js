// The table of all runs, with filters; what changes comes as rows.
import { button, fill, make, runLink, select, stateBadge } from "./dom.js";
import { ago, isFinal, took } from "./format.js";
import { ask, exported, follow } from "./source.js";

const SHOWN = 40; // rows at first, and each time that their end comes near
const STATES = ["live", "ended", "submitting", "pending", "starting", "running", "restarting", "stopping", "finishing", "succeeded",
  "failed", "cancelled", "unreadable"];

const known = new Map(); // run id -> what is known of it: who comes back to the table sees it at once
let isRead = false;

export async function showRuns(main, _words, _query, onlink) {
  if (exported) take({ rows: await ask("/api/runs"), all: true });
  const said = new Map(); // run id -> what a search looks through
  let sorted = null; // the newest first; null after a change
  const drawn = new Map(); // run id -> its row on the page
  const chosen = new Set();
  let most = SHOWN;
  let text = "";
  let state = "";

  const count = make("p", { role: "status" });
  const body = make("tbody");
  const more = button("Show more", () => { most += SHOWN; draw(); });
  const curves = button("Curves", () => { location.hash = `#/curves?${chosenWords()}`; });
  const diff = button("Diff", () => { location.hash = `#/diff/${[...chosen].map(encodeURIComponent).join("/")}`; });
  const search = make("input", { type: "search", placeholder: "name, profile, note …", oninput: () => {
    text = search.value;
    draw();
  } });

  function chosenWords() {
    return [...chosen].map((each) => `run=${encodeURIComponent(each)}`).join("&");
  }

  function takes(row, words) {
    if (state === "live" ? isFinal(row.state) : state === "ended" ? !isFinal(row.state) : state && row.state !== state) {
      return false;
    }
    if (!words.length) return true;
    let all = said.get(row.run_id);
    if (all === undefined) {
      all = `${row.run_id} ${row.name} ${row.profile} ${row.state} ${row.note}`.toLowerCase();
      said.set(row.run_id, all);
    }
    return words.every((word) => all.includes(word));
  }

  function rowOf(row) {
    const box = make("input", { type: "checkbox", "aria-label": `choose ${row.run_id}`, checked: chosen.has(row.run_id),
      onchange: () => { chosen[box.checked ? "add" : "delete"](row.run_id); tellChoice(); } });
    const sweep = row.sweep && make("a", { href: `#/sweep/${encodeURIComponent(row.sweep)}`, class: "muted" }, "sweep");
    const cells = [box, [runLink(row.run_id), " ", sweep], stateBadge(row.state), row.profile, row.world_size ?? "?",
      ago(row.created), took(row), row.note];
    const element = make("tr", {}, cells.map((cell) => make("td", {}, ...[cell].flat())));
    element.dataset.final = isFinal(row.state);
    return element;
  }

  function tellChoice() {
    curves.disabled = chosen.size === 0;
    diff.disabled = chosen.size !== 2;
  }

  function draw() {
    sorted ??= [...known.values()].sort((a, b) => b.created - a.created);
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = sorted.filter((row) => takes(row, words));
    const shown = found.slice(0, most);
    fill(body, shown.map((row) => {
      if (!drawn.has(row.run_id)) drawn.set(row.run_id, rowOf(row));
      return drawn.get(row.run_id);
    }));
    more.hidden = found.length <= most;
    count.textContent = !isRead ? "Loading …" : known.size === 0 ? "No runs yet: orch submit JOB --profile PROFILE starts one."
      : `${found.length.toLocaleString("en-US")} of ${known.size.toLocaleString("en-US")} runs`;
    tellChoice();
  }

  const heads = ["", "Run", "State", "Profile", "Ranks", "Submitted", "Took", "Note"];
  const tools = make("form", { class: "tools", role: "search", onsubmit: (event) => event.preventDefault() },
    make("label", {}, "Search ", search),
    select("State", [["", "all"], ...STATES], "", (value) => { state = value; draw(); }), curves, diff);
  fill(main, make("h1", {}, "Runs"), tools, count,
    make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Runs" },
      make("table", { class: "runs" }, make("caption", { class: "hidden" }, "Runs"),
        make("thead", {}, make("tr", {}, heads.map((each) => make("th", { scope: "col" }, each || make("span",
          { class: "hidden" }, "Choose"))))), body)), more);
  draw();

  function drawAgain(row) {
    said.delete(row.run_id);
    const old = drawn.get(row.run_id);
    if (!old) return;
    const element = rowOf(row);
    drawn.set(row.run_id, element);
    const focused = old.contains(document.activeElement) && document.activeElement.tagName;
    old.replaceWith(element);
    if (focused) element.querySelector(focused)?.focus();
  }

  function told(message) {
    const { changed, gone } = take(message);
    if (!changed.length && !gone.length && !message.all) return;
    changed.forEach(drawAgain);
    for (const id of gone) {
      drawn.delete(id);
      chosen.delete(id);
      said.delete(id);
    }
    sorted = null;
    draw();
  }

  const end = new IntersectionObserver((seen) => {
    if (!seen.at(-1).isIntersecting) return;
    most += SHOWN;
    draw();
    end.unobserve(more); // looked at once more: a tall screen has room for more
    end.observe(more);
  }, { rootMargin: "300px" });
  end.observe(more);
  const stop = follow(null, told, onlink);
  const ticking = exported ? 0 : setInterval(() => { // ages
    if (body.contains(document.activeElement)) return;
    drawn.clear();
    draw();
  }, 15000);
  return () => { stop(); end.disconnect(); clearInterval(ticking); };
}

// Takes a message into what is known; returns the rows that have changed, and the ids that are gone.
function take({ rows = [], gone = [], all = false }) {
  isRead = true;
  const there = all ? new Set(rows.map((row) => row.run_id)) : null;
  const lost = all ? [...known.keys()].filter((id) => !there.has(id)) : gone;
  const changed = rows.filter((row) => !isSame(known.get(row.run_id), row));
  for (const row of changed) known.set(row.run_id, row);
  for (const id of lost) known.delete(id);
  return { changed, gone: lost };
}

function isSame(one, other) {
  return one !== undefined && Object.keys(other).every((key) => one[key] === other[key]);
}
