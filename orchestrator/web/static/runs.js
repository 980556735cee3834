// The table of all runs: a summary, a filter, columns, order and groups that the user chooses. Changes come as rows.
import { Columns, DEFAULTS, KINDS, column, grouped, isWaiting, meanAndSpread, sorted, textOf } from "./columns.js";
import { addressOf, addressOfDiff, button, emptyNote, fill, make, openDialog, runLink, select, stateBadge, sweepLink, table } from "./dom.js";
import { compile } from "./filter.js";
import { isFinal } from "./format.js";
import { labelsButton } from "./labels.js";
import { ask, exported, follow, paced } from "./source.js";
import { savedViews } from "./saved.js";
import { drawTrend } from "./trend.js";

const SHOWN = 40; // rows at first, and more each time that a reader comes near their end
const MOST_TRENDS = 20; // live runs whose trend is drawn
const AGAIN = 2000; // ms between two requests for trends
const USUAL_SORT = "-submitted";
const ARROWS = { ArrowDown: 1, ArrowUp: -1 };

const TERMS = [
  ['"out of memory"', "with this text"], ["state:failed", "in this state; live, ended and waiting are several"], ["lr>0.1", "with such a number; also <, >=, <=, = and !="],
  ["tag:ablation", "with this tag"], ["optimizer:adam,sgd", "with one of these words"], ["took>10m", "that took longer; ms, s, m, h, d, w"], ["ended:today", "that ended since midnight"], ["lr:*", "with any value"],
  ["-tag:baseline", "for which the term does not hold"],
];

const known = new Map(); // run id -> its row; it is kept, so that a reader who returns to the table sees it at once
let isRead = false;

export async function showRuns(main, _words, query, onlink) {
  if (exported) take({ rows: await ask("/api/runs"), all: true });
  const settings = settingsOf(query);
  const drawn = new Map(); // run id -> its row on the page
  const chosen = new Set();
  const open = new Set(); // the groups whose runs are shown
  let columns = new Columns([]);
  let shown = []; // columns
  let passes = () => true;
  let isNew = true; // the rows have changed since `columns` were made
  let offered = null; // the columns in the choice of groups
  let most = SHOWN;
  let listed = []; // the rows on the page
  const trends = new Map(); // run id -> the element with the course of its first metric
  let isClosed = false;

  const summary = make("ul", { class: "summary", "aria-label": "Summary" });
  const count = make("p", { role: "status", class: "count" });
  const problem = make("p", { class: "problem", role: "alert", id: "filter-problem" });
  const grid = make("table", { class: "runs", role: "table", onkeydown: step });
  const empty = make("div");
  const more = button("Show more", () => { most += SHOWN; draw(); });
  const search = make("input", { type: "search", value: settings.filter, size: 48, "aria-describedby": "filter-problem",
    placeholder: 'state:failed lr>0.1 tag:ablation "out of memory"', oninput: () => { settings.filter = search.value; change(); } });
  const grouping = make("span");
  const views = savedViews("runs", { usual: "all runs", about: "The filter, order, groups and columns of the table get a name.",
    present: () => queryOf(settings), open: (view) => { location.hash = `#/${view}`; } });
  const does = {
    compare: button("Compare", () => { location.hash = addressOf("compare", [...chosen]); }, { title: "Show the chosen runs side by side: where they differ, what they used, and their curves" }),
    curves: button("Curves", () => { location.hash = addressOf("curves", [...chosen]); }, { title: "Draw the metrics of the chosen runs into the same panels" }),
    diff: button("Diff", () => { location.hash = addressOfDiff(...chosen); }, { title: "Show what changed between two chosen runs: job, profile, code and versions" }),
  };

  // Returns the columns that the user chose, or else the default ones with the settings and metrics in which the runs differ.
  function columnsToShow() {
    const rows = [...known.values()];
    if (!settings.isDefault) return settings.columns;
    const isUseful = { tag: () => rows.some((row) => row.labels.tags.length), profile: () => new Set(rows.map((row) => row.profile)).size > 1 };
    const usual = DEFAULTS.filter((key) => isUseful[key]?.() ?? true);
    return usual.toSpliced(usual.indexOf("reason") + 1, 0, ...columns.suggested());
  }

  // Writes new settings into the page's address, and redraws the table.
  function change() {
    history.replaceState(null, "", `#/${queryOf(settings)}`);
    most = SHOWN;
    views.draw();
    draw();
  }

  // Rebuilds columns, filter and the choice of groups, each only after a change.
  function renew() {
    if (isNew) columns = new Columns([...known.values()]);
    isNew = false;
    const keys = columnsToShow();
    if (keys.join() !== shown.map((each) => each.key).join()) drawn.clear();
    shown = named(keys.map(column));
    try {
      passes = compile(settings.filter, columns);
      fill(problem);
    } catch (error) {
      fill(problem, isRead ? error.message : ""); // the rows of the last valid filter stay
    }
    search.setAttribute("aria-invalid", problem.textContent !== "");
    if (offered === columns.facts.join()) return; // an open list must not close
    offered = columns.facts.join();
    const facts = columns.facts.filter((key) => !/^(metric|result)\./.test(key)).map((key) => [key, key]);
    fill(grouping, select("Group by", [["", "nothing"], ["name", "name"], ["profile", "profile"], ["state", "state"], ["sweep", "sweep"], ["tag", "tag"], ...facts],
      settings.group, (value) => { settings.group = value; open.clear(); change(); }));
  }

  function draw() {
    renew();
    drawSummary();
    const rows = [...known.values()].filter(passes);
    const by = column(settings.sort.replace(/^-/, "")) ?? column("submitted");
    const found = sorted(rows, by, settings.sort.startsWith("-"));
    if (settings.sort === USUAL_SORT) found.sort((one, other) => isFinal(one.state) - isFinal(other.state)); // live runs first
    const group = settings.group ? column(settings.group) : null;
    listed = found.slice(0, most);
    const focused = grid.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    fill(grid, make("caption", { class: "hidden" }, "Runs"), head(by), group ? groupsOf(found, group) : bodyOf(listed));
    if (focused) grid.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    more.hidden = group !== null || found.length <= most;
    grid.hidden = rows.length === 0;
    fill(empty, rows.length || !isRead ? null : nothing());
    count.textContent = isRead ? `${found.length.toLocaleString("en-US")} of ${known.size.toLocaleString("en-US")} runs` : "Loading …";
    tellChoice();
  }

  function drawSummary() {
    const rows = [...known.values()];
    const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
    const live = rows.filter((row) => !isFinal(row.state));
    const running = live.filter((row) => !isWaiting(row));
    const failed = rows.filter((row) => row.state === "failed" && row.ended >= midnight);
    const gpus = running.reduce((sum, row) => sum + (row.facts["machine.gpus"] ?? 0), 0);
    const tile = (name, value, filter, kind) => make("li", {}, button([make("strong", {}, String(value)), ` ${name}`], () => {
      search.value = settings.filter = filter;
      change();
    }, { class: value ? kind : "" }));
    fill(summary, tile("running", running.length, "state:live -state:waiting", "running"), tile("waiting", live.length - running.length, "state:waiting", "waiting"),
      tile("failed today", failed.length, "state:failed ended:today", "failed"), make("li", { class: "plain" }, make("strong", {}, String(gpus)), gpus === 1 ? " GPU in use" : " GPUs in use"));
  }

  function nothing() {
    if (!known.size) return emptyNote("No runs yet. ", make("code", {}, "orch submit JOB --profile PROFILE"), " starts one, and it appears here by itself.");
    return emptyNote("No run passes this filter. ", button("Clear the filter", () => { search.value = settings.filter = ""; change(); search.focus(); }));
  }

  function head(by) {
    const isDown = settings.sort.startsWith("-");
    const cells = shown.map((each) => {
      const is = each.key === by.key;
      const turn = () => { settings.sort = is && isDown ? each.key : `-${each.key}`; change(); };
      return make("th", { scope: "col", role: "columnheader", "aria-sort": is ? (isDown ? "descending" : "ascending") : false },
        button([each.title, make("span", { "aria-hidden": "true" }, is ? (isDown ? " ↓" : " ↑") : "")], turn, { "data-key": `sort:${each.key}`, title: each.about ?? "" }));
    });
    return make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, make("th", { scope: "col", role: "columnheader" }, make("span", { class: "hidden" }, "Choose")), cells));
  }

  function bodyOf(rows) {
    return make("tbody", { role: "rowgroup" }, rows.map((row) => {
      if (!drawn.has(row.run_id)) drawn.set(row.run_id, rowOf(row));
      return drawn.get(row.run_id);
    }));
  }

  function rowOf(row) {
    const box = make("input", { type: "checkbox", "data-key": `choose:${row.run_id}`, "aria-label": `choose ${row.run_id}`, checked: chosen.has(row.run_id),
      onchange: () => { chosen[box.checked ? "add" : "delete"](row.run_id); tellChoice(); } });
    const cells = shown.map((each) => {
      const parts = cellOf(each, row);
      return make("td", { role: "cell", class: `cell-${each.kind === "run" ? each.key : "fact"}${parts[0] === "-" ? " none" : ""}`, "data-label": each.title, title: each.hint?.(row) }, ...parts);
    });
    return make("tr", { role: "row", class: isFinal(row.state) ? "" : "live" }, make("td", { role: "cell", class: "cell-choose" }, box), cells);
  }

  function cellOf(each, row) {
    if (each.key === "run") {
      const sweep = row.sweep && sweepLink(row.sweep, "sweep", { class: "small" });
      const link = runLink(row.run_id);
      link.dataset.key = `run:${row.run_id}`;
      return [link, " ", sweep, exported ? null : labelsButton(row.run_id, () => row.labels, (labels) => told({ rows: [{ ...known.get(row.run_id), labels }] }))];
    }
    if (each.key === "state") return [stateBadge(row.state)];
    if (each.key === "tag") return row.labels.tags.map((tag) => [make("span", { class: "tag" }, tag), " "]).flat();
    if (each.key === "reason") return [make("div", { class: "clamp", title: row.note }, ...reasonOf(row)), isRunning(row) ? trendOf(row.run_id) : ""];
    return [textOf(each, row)];
  }

  function trendOf(id) {
    if (!trends.has(id)) trends.set(id, make("div", { class: "trend" }));
    return trends.get(id);
  }

  const lookAtTrends = paced(AGAIN, async () => {
    const run = listed.filter(isRunning).slice(0, MOST_TRENDS).map((row) => row.run_id);
    if (isClosed || !run.length) return;
    for (const [id, found] of Object.entries(await ask("/api/trends", { run }))) drawTrend(trendOf(id), found);
  });

  function groupsOf(rows, group) {
    return grouped(rows, group).map(([text, members]) => {
      const isOpen = open.has(text);
      const states = Object.entries(Object.groupBy(members, (row) => row.state)).map(([state, those]) => [stateBadge(`${state}`), ` ${those.length} `]).flat();
      const toggle = button([make("span", { "aria-hidden": "true" }, isOpen ? "▾ " : "▸ "), `${text} (${members.length})`],
        () => { open[isOpen ? "delete" : "add"](text); draw(); },
        { class: "group", "aria-expanded": String(isOpen), "data-key": `group:${text}` });
      const cells = shown.map((each, at) => make("td", { role: "cell", "data-label": each.title }, ...(at === 0 ? [toggle] : each.key === "state" ? states : [meanOf(members, each)])));
      const line = make("tr", { role: "row", class: "of-group" }, make("td", { role: "cell" }), cells);
      const body = isOpen ? bodyOf(members) : make("tbody", { role: "rowgroup" });
      body.prepend(line);
      return body;
    });
  }

  function tellChoice() {
    does.compare.disabled = does.curves.disabled = chosen.size === 0;
    does.diff.disabled = chosen.size !== 2;
    does.compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
  }

  // The arrow keys go from row to row, and stay in their column.
  function step(event) {
    const way = ARROWS[event.key];
    const row = way && event.target.closest("tbody tr");
    if (!row) return;
    const rows = [...grid.querySelectorAll("tbody tr")];
    const next = rows[rows.indexOf(row) + way];
    const at = [...row.querySelectorAll("a, button, input")].indexOf(event.target);
    const places = next ? [...next.querySelectorAll("a, button, input")] : [];
    if (!places.length) return;
    event.preventDefault();
    (places[at] ?? places[0]).focus();
  }

  function chooseColumns() {
    const all = [...columns.own, ...columns.values, ...columns.facts].map(column);
    const boxes = new Map();
    const groups = Object.entries(KINDS).map(([kind, title]) => {
      const those = all.filter((each) => each.kind === kind);
      const list = those.map((each) => {
        const box = make("input", { type: "checkbox", checked: shown.some((one) => one.key === each.key), onchange: choose });
        boxes.set(each.key, box);
        return make("label", {}, box, ` ${each.title}`);
      });
      return those.length ? make("fieldset", {}, make("legend", {}, title), list) : null;
    });
    function choose() {
      const there = shown.map((each) => each.key).filter((key) => boxes.get(key)?.checked ?? true);
      settings.columns = [...there, ...[...boxes].filter(([key, box]) => box.checked && !there.includes(key)).map(([key]) => key)];
      settings.isDefault = false;
      change();
    }
    const dialog = openDialog("Columns", [make("h2", {}, "Columns"), groups,
      all.some((each) => each.kind !== "run") ? null : emptyNote("Columns of config, result and metrics appear as soon as a run has written them."),
      make("div", { class: "tools" }, button("Done", () => dialog.close()), button("Default columns", () => { settings.columns = []; settings.isDefault = true; change(); dialog.close(); }))], "columns");
  }

  function explainFilter() {
    const dialog = openDialog("How to filter", [make("h2", {}, "How to filter"),
      table("All terms have to hold", ["Term", "Runs"], TERMS.map(([term, meaning]) => [make("code", {}, term), meaning])),
      make("p", {}, "The names of the columns are those of ", make("strong", {}, "Columns …"), ". The key / comes here, and the arrow keys go from row to row."), button("Close", () => dialog.close(), { autofocus: true })]);
  }

  const tools = make("form", { class: "tools", role: "search", onsubmit: (event) => event.preventDefault() },
    make("label", { class: "filter" }, make("span", {}, "Filter "), search), button("?", explainFilter, { "aria-label": "Help", title: "How to filter" }), grouping, button("Columns …", chooseColumns), exported ? null : views.element,
    make("span", { class: "apart" }, does.compare, does.curves, does.diff));
  fill(main, make("h1", { class: "hidden" }, "Runs"), summary, tools, problem, count, make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Runs" }, grid), empty, more);
  draw();

  function told(message) {
    const { changed, gone } = take(message);
    if (!changed.length && !gone.length && !message.all) return;
    for (const row of changed) drawn.delete(row.run_id);
    for (const id of gone) {
      drawn.delete(id);
      chosen.delete(id);
    }
    isNew = true;
    draw();
    lookAtTrends().catch((error) => onlink(error.message));
  }

  function onkey(event) {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, dialog")) return;
    event.preventDefault();
    search.focus();
  }

  const end = new IntersectionObserver((seen) => {
    if (!seen.at(-1).isIntersecting) return;
    most += SHOWN;
    draw();
    end.unobserve(more); // observed again, because a tall screen has room for more rows
    end.observe(more);
  }, { rootMargin: "300px" });
  end.observe(more);
  addEventListener("keydown", onkey);
  const stop = follow(null, told, onlink);
  const ticking = exported ? 0 : setInterval(() => { // because ages grow
    drawn.clear();
    draw();
  }, 15000);
  return () => { isClosed = true; stop(); end.disconnect(); clearInterval(ticking); removeEventListener("keydown", onkey); };
}

function isRunning(row) {
  return !exported && !isFinal(row.state) && !isWaiting(row);
}

// Columns with the same title get their whole keys as titles: metric.loss and result.loss.
function named(columns) {
  return columns.map((each) => (columns.filter((one) => one.title === each.title).length > 1 ? { ...each, title: each.key } : each));
}

export function reasonOf(row) {
  const place = row.place && row.note.endsWith(`, ${row.place}`) ? row.place : "";
  return place ? [row.note.slice(0, -place.length - 2), make("span", { class: "place" }, ` — ${place}`)] : [row.note];
}

function meanOf(rows, of) {
  const found = of.value === undefined ? null : meanAndSpread(rows, of);
  if (!found || ["submitted", "ended", "age"].includes(of.key)) return "";
  return found.spread === null ? of.spread(found.mean, 4) : `${of.spread(found.mean, 4)} ± ${of.spread(found.spread, 2)}`;
}

// Returns the filter, order, groups and columns in an address.
function settingsOf(query) {
  const columns = query.get("columns")?.split(",").filter((key) => column(key)) ?? [];
  return { filter: query.get("filter") ?? "", sort: query.get("sort") ?? USUAL_SORT, group: query.get("group") ?? "",
    columns, isDefault: columns.length === 0 };
}

function queryOf({ filter, sort, group, columns, isDefault }) {
  const words = new URLSearchParams();
  if (filter) words.set("filter", filter);
  if (sort !== USUAL_SORT) words.set("sort", sort);
  if (group) words.set("group", group);
  if (!isDefault) words.set("columns", columns.join(","));
  const text = words.toString();
  return text ? `?${text}` : "";
}

// Stores the rows of a message. Returns the rows that have changed, and the ids that are gone.
function take({ rows = [], gone = [], all = false }) {
  isRead = true;
  const there = all ? new Set(rows.map((row) => row.run_id)) : null;
  const lost = all ? [...known.keys()].filter((id) => !there.has(id)) : gone;
  const changed = rows.filter((row) => JSON.stringify(known.get(row.run_id)) !== JSON.stringify(row));
  for (const row of changed) known.set(row.run_id, row);
  for (const id of lost) known.delete(id);
  return { changed, gone: lost };
}
