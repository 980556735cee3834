// A sweep or a search: its points, the best first, the effect of each setting on the metric, and the curves of its points.
import { curvesPanel } from "./curves.js";
import { addressOfRun, emptyNote, fill, make, runLink, section, select, stateBadge, wide } from "./dom.js";
import { parallel, scatter } from "./drawings.js";
import { number } from "./format.js";
import { ask, exported, follow } from "./source.js";

const MOST_CURVES = 8;

export async function showSweep(main, [sweep], query, onlink) {
  const path = `/api/sweeps/${encodeURIComponent(sweep)}`;
  let metric = query.get("metric") ?? "";
  let setting = "";
  let found = null;
  let drawings = [];
  let panel = null;
  const [said, head, tools, points, pictures, curves] = ["p", "p", "div", "div", "div", "div"].map((name) => make(name));
  curves.className = "curves";

  async function load() {
    found = await ask(path, { metric });
  }

  function draw() {
    const { rows, metric: name, better, importances } = found;
    const valued = rows.filter((row) => row.value !== null);
    const keys = [...new Set(rows.flatMap((row) => Object.keys(row.settings)))];
    const best = valued.length ? valued[0].run_id : null;
    fill(said, found.note);
    said.hidden = !found.note;
    fill(head, best ? ["Best of ", `${rows.length} runs: `, make("strong", {}, `${name} ${number(valued[0].value)}`), " with ", runLink(best, valued[0].label), "."]
      : `${rows.length} runs, and none has left a number yet. ${found.hint ? `To rank them, ${found.hint}.` : ""}`);
    fill(tools, exported || found.names.length < 2 ? null : select("Rank by", found.names, name, (value) => { metric = value; redraw(); }));
    fill(points, pointsTable(rows, keys, name, better));
    drawings.forEach((each) => each.close());
    drawings = [];
    if (valued.length < 2 || !keys.length) {
      fill(pictures, emptyNote("The drawings of settings and metric appear when two runs have a value."));
      return;
    }
    if (!keys.includes(setting)) setting = importances[0]?.name ?? keys[0];
    const lines = valued.map((row) => ({ id: row.run_id, label: `${row.label}: ${number(row.value)}`, cells: { ...row.settings, [name]: row.value } }));
    const onpick = (id) => { location.hash = addressOfRun(id); };
    const all = parallel(`Parallel coordinates of ${keys.join(", ")} and ${name}`, [...keys, name], lines, { best, onpick });
    const one = scatter(`${name} by ${setting}`, [setting, name], valued.filter((row) => row.settings[setting] !== undefined).map((row) => ({ id: row.run_id, label: row.label, x: row.settings[setting], y: row.value })), { best, onpick });
    const inOrder = [...rows].sort((a, b) => a.index - b.index);
    const so_far = scatter(`Best ${name} so far by trial`, ["trial", name], valued.map((row) => ({ id: row.run_id, label: row.label, x: row.index, y: row.value })),
      { best, steps: inOrder.filter((row) => row.best !== null).map((row) => [row.index, row.best]), onpick });
    drawings = [all, one, so_far];
    fill(pictures, section("Settings and metric", make("p", { class: "small muted" }, "Each line is a run. The thick line is the best run."), all.element), make("div", { class: "pair" },
      section("One setting", select("Setting", keys, setting, (value) => { setting = value; draw(); }), one.element),
      section("Importance", importanceTable(importances, name)), section("Best so far", so_far.element)));
  }

  async function redraw() {
    await load();
    draw();
    history.replaceState(null, "", `#/sweep/${encodeURIComponent(sweep)}${metric ? `?metric=${encodeURIComponent(metric)}` : ""}`);
  }

  await load();
  draw();
  const shown = found.rows.slice(0, MOST_CURVES);
  const labels = Object.fromEntries(found.rows.map((row) => [row.run_id, row.label]));
  panel = await curvesPanel(shown.map((row) => row.run_id), found.names.includes(found.metric) ? found.metric : "", { labels });
  fill(curves, found.rows.length > MOST_CURVES ? make("p", { class: "small muted" }, `The curves are those of the first ${MOST_CURVES} runs in the table.`) : null, panel.element);
  fill(main, make("h1", {}, `Sweep ${sweep}`), head, said, tools, points, pictures, curves);
  let work = Promise.resolve();
  const stop = follow(null, (told) => {
    if (told.rows?.some((row) => row.sweep === sweep)) work = work.then(async () => { await load(); draw(); await panel.refresh(); }).catch((error) => onlink(error.message));
  }, onlink);
  return () => { stop(); panel.close(); drawings.forEach((each) => each.close()); };
}

function pointsTable(rows, keys, metric, better) {
  const source = "of the result, or else the newest value";
  const caption = metric ? `Points by ${metric}, the ${better === "lower" ? "lowest" : "highest"} first` : "Points";
  const heads = ["Place", "Run", "State", ...keys, metric || "Value"];
  const lines = rows.map((row) => make("tr", { class: row.rank === 1 ? "best" : "" }, ...[row.rank === 1 ? make("strong", {}, "1 (best)") : row.rank ?? "-",
    runLink(row.run_id), stateBadge(row.state), ...keys.map((key) => (row.settings[key] === undefined ? "-" : number(row.settings[key]))), number(row.value)].map((cell) => make("td", {}, cell))));
  return wide(make("table", { class: "points" }, make("caption", {}, caption), make("thead", {}, make("tr", {}, heads.map((each, at) => make("th", { scope: "col", title: at === heads.length - 1 ? source : null }, each)))), make("tbody", {}, lines)), caption);
}

function importanceTable(importances, metric) {
  if (!importances.length) return emptyNote("The importance of a setting is known from three runs with different values on.");
  const rows = importances.map((each) => make("tr", {}, make("td", {}, each.name),
    make("td", {}, make("meter", { min: 0, max: 1, value: each.importance, "aria-label": `importance of ${each.name}` })), make("td", {}, each.importance.toFixed(2)),
    make("td", {}, each.correlation === null ? "share of variance" : "rank correlation"), make("td", {}, effectOf(each, metric))));
  const heads = ["Setting", "Importance", "", "Measure", "Effect"];
  return wide(make("table", { class: "importance" }, make("caption", { class: "small" }, "Of numbers, the absolute rank correlation (Spearman) of setting and metric; of words, the share of the variance of the metric's ranks that the setting explains"),
    make("thead", {}, make("tr", {}, heads.map((each) => make("th", { scope: "col" }, each || make("span", { class: "hidden" }, "Number"))))), make("tbody", {}, rows)), "Importance of the settings");
}

function effectOf({ name, effect, best, tied }, metric) {
  const way = { rises: `${metric} rises with it`, falls: `${metric} falls with it`, inside: `best inside its range, at ${number(best)}` }[effect] ?? `best at ${number(best)}`;
  return tied.length ? `${way}; ${name} and ${tied.join(", ")} always change together, so their effects can't be told apart` : way;
}
