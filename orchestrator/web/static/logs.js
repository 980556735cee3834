// A part of one rank's log. Buttons and a search move to other parts, or the page follows the end.
import { button, fill, make, section, select } from "./dom.js";
import { bytes } from "./format.js";
import { ask, exported, pathOf } from "./source.js";

const MOST = 4000; // lines on the page
const AGAIN = 20000; // ms: a log is copied from its node for a minute after each request

// `logs` are pairs [attempt, rank].
export async function logPanel(run, logs, chosen = null) {
  let [attempt, rank] = chosen ?? first(logs);
  let page = null; // {lines, start, end, size}
  let follows = true;
  let mark = null; // the offset of the match of the search
  const where = `${pathOf(run)}/log`;
  const text = make("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Lines of the log" });
  const said = make("p", { role: "status" });
  const tools = make("div", { class: "tools" });
  const words = make("input", { type: "search", placeholder: "search this log" });
  const keep = make("input", { type: "checkbox", checked: true, onchange: () => { follows = keep.checked; if (follows) toEnd(); } });

  function query(more) {
    return { rank, attempt, ...more };
  }

  function line(each) {
    const found = mark !== null && each.offset <= mark && mark < each.offset + Math.max(1, each.text.length + 1);
    return make("div", { class: found ? "found" : null }, each.text || " ");
  }

  function draw() {
    fill(text, page.lines.map(line));
    tell();
  }

  function tell(more = "") {
    const part = page.size ? ` · ${bytes(page.start)} to ${bytes(page.end)} of ${bytes(page.size)}` : " · empty";
    fill(said, `rank ${rank}, attempt ${attempt}${part}${more ? ` · ${more}` : ""}`);
  }

  async function toEnd() {
    ({ page } = await ask(where, query({})));
    mark = null;
    draw();
    text.scrollTop = text.scrollHeight;
  }

  async function earlier() {
    leaveEnd();
    const found = (await ask(where, query({ before: page.start }))).page;
    if (!found.lines.length) return;
    page = { ...page, start: found.start, lines: [...found.lines, ...page.lines].slice(0, MOST) };
    page.end = page.lines.length < MOST ? page.end : page.lines.at(-1).offset;
    draw();
    text.scrollTop = 0;
  }

  async function later() {
    const last = page.lines.at(-1); // it may have grown since, so it is requested again
    const found = (await ask(where, query({ after: last ? last.offset : page.start }))).page;
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    const lines = [...page.lines.slice(0, -1), ...found.lines];
    const shrunk = lines.slice(-MOST);
    const isPlain = shrunk.length === lines.length && page.lines.length > 0;
    page = { ...found, start: shrunk[0]?.offset ?? found.start, lines: shrunk };
    if (isPlain) {
      text.lastChild?.remove();
      text.append(...found.lines.map(line));
      tell();
    } else draw();
    if (follows && isAtEnd) text.scrollTop = text.scrollHeight;
  }

  async function search(backwards) {
    if (!words.value) return;
    leaveEnd();
    let from = mark === null ? (backwards ? page.size : 0) : backwards ? mark : mark + 1;
    for (;;) {
      const { found, page: window, size } = await ask(where, query({ find: words.value, from, backwards: backwards ? "1" : "" }));
      if (found.offset !== null) {
        mark = found.offset;
        page = window;
        draw();
        text.querySelector(".found")?.scrollIntoView({ block: "center" });
        return;
      }
      if (found.is_over) return tell(`no ${mark === null ? "" : "other "}'${words.value}' ${backwards ? "before" : "after"} this`);
      tell(`searching: ${bytes(found.reached)} of ${bytes(size)}`);
      from = found.reached;
    }
  }

  function leaveEnd() {
    follows = keep.checked = false;
  }

  async function choose(newAttempt, newRank) {
    attempt = newAttempt;
    rank = newRank;
    await toEnd();
  }

  const ranks = [...new Set(logs.map((each) => each[1]))].sort((a, b) => a - b);
  const attempts = [...new Set(logs.map((each) => each[0]))].sort((a, b) => a - b);
  words.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); search(event.shiftKey); } });
  words.addEventListener("input", () => { mark = null; });
  fill(tools, select("Rank", ranks.length ? ranks : [0], String(rank), (value) => choose(attempt, Number(value))),
    attempts.length > 1 ? select("Attempt", attempts, String(attempt), (value) => choose(Number(value), rank)) : null,
    exported ? null : [make("label", {}, "Search ", words), button("Previous", () => search(true)), button("Next", () => search(false)),
      button("Older lines", earlier), button("Newer lines", later), make("label", {}, keep, " Follow its end")]);
  const again = exported ? null : setInterval(() => ask(where, query({ after: page.end })).catch(() => {}), AGAIN); // the stream of changes reports the failure
  await toEnd().catch((error) => { page = { lines: [], start: 0, end: 0, size: 0 }; fill(said, error.message); });
  return {
    element: section("Log", tools, text, said),
    shown: () => { if (follows) text.scrollTop = text.scrollHeight; },
    close: () => clearInterval(again),
    refresh: async () => { if (follows) await later(); },
  };
}

function first(logs) {
  const newest = Math.max(0, ...logs.map((each) => each[0]));
  const ranks = logs.filter((each) => each[0] === newest).map((each) => each[1]);
  return [newest, ranks.length ? Math.min(...ranks) : 0];
}
