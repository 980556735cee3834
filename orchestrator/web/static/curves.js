// Metrics of one run or several: a panel for each, which the reader chooses, arranges, scales, smooths and saves.
import { addressOf, button, emptyNote, fill, make, menu, runLink, select } from "./dom.js";
import { chart, colour, colourKey, csv, drawing, save, variable, whenLookChanges, whereX } from "./chart.js";
import { number } from "./format.js";
import { savedViews } from "./saved.js";
import { ask, exported, follow, paced } from "./source.js";

const FIRST = 12; // so many panels are shown at first
const AGAIN = 1000; // ms between two requests for new values
const BOOKKEEPING = new Set(["epoch", "step", "steps", "time", "seconds"]);
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const AXES = [["step", "step"], ["epoch", "epoch"], ["time", "run time"], ["clock", "wall clock"], ["share", "% of the run"]];
const COLUMNS = [["", "as many as fit"], ["1", "1"], ["2", "2"], ["3", "3"], ["4", "4"]];
const CHOICES = ["show", "log", "x", "smooth", "columns"]; // the parameters of the address that a saved view has too
const LACKS = { epoch: "no epochs", time: "no times", clock: "no times" };
const HEIGHT = 220;
const MIDDLE = 320;
const TALL = 460;

export async function showCurves(main, _words, query, onlink) {
  const runs = query.getAll("run");
  const panels = await curvesPanel(runs, query.get("metric") ?? "", { query, place: addressOf("curves", runs) });
  fill(main, make("h1", {}, runs.length === 1 ? "Curves" : `Curves of ${runs.length} runs`), panels.element);
  const stops = runs.map((run) => follow(run, (told) => { if (told.changed.includes("metrics")) panels.refresh().catch((error) => onlink(error.message)); }, onlink));
  return () => { stops.forEach((stop) => stop()); panels.close(); };
}

// Returns {element, refresh, close}. `only` shows one metric without tools; `labels` names runs; `place` is the address
// that keeps the reader's choices, and that can show saved ones; `attempts` returns the attempts of the only run.
export async function curvesPanel(given, first = "", { query = new URLSearchParams(), place = null, only = false, labels = {}, attempts = () => [] } = {}) {
  const chosen = { runs: [...given, ...query.getAll("with")], baseline: query.get("baseline") ?? "", ...choicesIn(query) };
  const group = uPlot.sync(`curves-${Math.random()}`);
  const known = new Map(); // metric -> its curves
  const panels = new Map(); // metric -> its panel
  let names = [];
  let hint = "";
  const grid = make("div", { class: "panels", "data-columns": only ? "1" : null });
  const list = make("div");

  // -- data

  async function read(metrics) {
    const asked = { run: chosen.runs, smoothing: chosen.smoothing || "" };
    const parts = exported ? await Promise.all((metrics.length ? metrics : ["loss"]).map((metric) => ask("/api/curves", { run: chosen.runs, metric })))
      : [await ask("/api/curves", { ...asked, metric: metrics })];
    for (const panel of parts.flatMap((part) => part.panels)) known.set(panel.metric, panel.curves.map(exported ? smoothed : (curve) => curve));
    const before = names.join();
    names = inOrder([...parts[0].names, ...parts[0].kinds], first);
    hint = parts[0].hint;
    return names.join() !== before;
  }

  // An exported page has no server that could smooth all values, so it smooths the values that it has.
  function smoothed(curve) {
    if (!chosen.smoothing) return curve;
    let mean = 0;
    let seen = 0;
    const smooth = curve.values.map((value) => {
      mean = chosen.smoothing * mean + (1 - chosen.smoothing) * value;
      seen = chosen.smoothing * seen + (1 - chosen.smoothing);
      return mean / seen;
    });
    return { ...curve, smooth };
  }

  function shown() {
    if (only) return names.slice(0, 1);
    const there = chosen.metrics.filter((metric) => names.includes(metric));
    return there.length ? there : names.filter((metric) => !BOOKKEEPING.has(metric)).slice(0, FIRST);
  }

  // -- panels

  function arrange() {
    const wanted = shown();
    for (const [metric, panel] of panels) {
      if (wanted.includes(metric)) continue;
      seen.unobserve(panel.element);
      panel.close();
      panels.delete(metric);
    }
    for (const metric of wanted) {
      if (panels.has(metric)) continue;
      panels.set(metric, panelOf(metric));
      seen.observe(panels.get(metric).element);
    }
    const elements = wanted.map((metric) => panels.get(metric).element);
    if (elements.some((element, at) => grid.children[at] !== element) || grid.children.length !== elements.length) fill(grid, elements);
    if (!wanted.length) fill(grid, emptyNote(hint ? `No metric has been written. To see a curve here, ${hint}.` : "All metrics are hidden: choose some above."));
    if (!only) grid.dataset.columns = chosen.columns;
    offer();
    keep();
  }

  function panelOf(metric) {
    const panel = onePanel(metric, { chosen, known, group, labels, only, attempts: () => (chosen.runs.length === 1 ? attempts() : []), act: {
      zoom: () => [...panels.values()].map((each) => each.zoom()).find(Boolean),
      hide: () => { chosen.metrics = shown().filter((each) => each !== metric); arrange(); },
      move: (by) => move(metric, by),
      drop: (moved) => { chosen.metrics = shown().filter((each) => each !== moved); chosen.metrics.splice(chosen.metrics.indexOf(metric), 0, moved); arrange(); },
      log: () => { chosen.log[chosen.log.has(metric) ? "delete" : "add"](metric); panel.draw(); keep(); },
      table: async () => (exported ? known.get(metric) : (await ask("/api/curves", { run: chosen.runs, metric, every: 1 })).panels[0].curves),
    } });
    return panel;
  }

  function move(metric, by) {
    const order = shown();
    const at = order.indexOf(metric);
    const to = Math.min(order.length - 1, Math.max(0, at + by));
    order.splice(to, 0, ...order.splice(at, 1));
    chosen.metrics = order;
    arrange();
  }

  const waiting = new Set(); // panels that came into view at the same moment are read by one request
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const panel = panels.get(target.dataset.metric);
      if (!panel) continue;
      panel.visible = isIntersecting;
      if (isIntersecting && panel.stale) waiting.add(target.dataset.metric);
    }
    if (waiting.size) load([...waiting]).catch(() => {}); // the stream of changes reports the failure
    waiting.clear();
  }, { rootMargin: "200px" });

  async function load(metrics) {
    if (!metrics.length) return;
    if (await read(metrics)) arrange();
    for (const metric of metrics) panels.get(metric)?.draw();
  }

  function again() {
    for (const panel of panels.values()) panel.stale = true;
    return load(shown().filter((metric) => panels.get(metric)?.visible));
  }

  let isClosed = false;
  const refresh = paced(AGAIN, () => (isClosed ? null : panels.size ? again() : start()));

  function redraw() {
    for (const panel of panels.values()) if (!panel.stale) panel.draw();
  }

  function resetZoom() {
    for (const panel of panels.values()) panel.close();
    redraw();
  }

  // -- the reader's choices

  // The choices that a view saves, as a query.
  function choices() {
    const words = new URLSearchParams();
    for (const metric of chosen.metrics) words.append("show", metric);
    for (const metric of chosen.log) words.append("log", metric);
    for (const [name, value, usual] of [["x", chosen.x, "step"], ["smooth", String(chosen.smoothing), "0"], ["columns", chosen.columns, ""]]) {
      if (value !== usual) words.set(name, value);
    }
    return words;
  }

  function address(words) {
    for (const run of chosen.runs.slice(given.length)) words.append("with", run);
    if (chosen.baseline) words.set("baseline", chosen.baseline);
    const text = words.toString();
    return text ? `${place}${place.includes("?") ? "&" : "?"}${text}` : place;
  }

  function keep() {
    if (place === null) return;
    history.replaceState(null, "", address(choices()));
    views.draw();
  }

  // A run opens with the view that is called like its job, or else with the view `default`.
  const job = (given[0] ?? "").replace(/-[^-]*$/, "");
  const views = place === null ? null : savedViews("curves", { usual: "the first panels", offered: job,
    about: `The choice, order and scales of the panels get a name. Runs called ${job} open with the view ${job}; others open with the view default, if there is one.`,
    present: () => choices().toString(), open: (view) => { location.hash = address(new URLSearchParams(view || "x=step")); } }); // x=step prevents that a saved view is opened instead

  async function chooseSaved() {
    if (CHOICES.some((name) => query.has(name))) return;
    const saved = await views.ready;
    const view = saved[job] ?? saved.default;
    if (view) Object.assign(chosen, choicesIn(new URLSearchParams(view)));
  }

  function offer() {
    const wanted = new Set(shown());
    const filter = list.querySelector("input[type=search]");
    const boxes = names.map((metric) => {
      const box = make("input", { type: "checkbox", checked: wanted.has(metric), onchange: () => {
        chosen.metrics = box.checked ? [...shown(), metric] : shown().filter((each) => each !== metric);
        arrange();
      } });
      const words = filter?.value.toLowerCase() ?? "";
      return make("label", { hidden: !metric.toLowerCase().includes(words) }, box, ` ${metric}`);
    });
    const focused = [...list.querySelectorAll("label")].findIndex((each) => each.contains(document.activeElement));
    if (!filter) {
      fill(list, make("div", { class: "tools" }, make("input", { type: "search", placeholder: "filter metrics", "aria-label": "Filter metrics", oninput: offer }),
        button("All", () => { chosen.metrics = [...names]; arrange(); }), button("First", () => { chosen.metrics = []; arrange(); }, { title: "The first panels" })), make("div", { class: "boxes" }),
      select("Columns", COLUMNS, chosen.columns, (value) => { chosen.columns = value; grid.dataset.columns = value; keep(); }));
    }
    fill(list.querySelector(".boxes"), boxes);
    boxes[focused]?.querySelector("input").focus();
    count.textContent = `Panels (${wanted.size} of ${names.length})`;
  }

  function tools() {
    const amount = make("output", {}, String(chosen.smoothing));
    const slider = make("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: String(chosen.smoothing), "aria-label": "Smoothing",
      oninput: () => { amount.textContent = slider.value; }, onchange: () => { chosen.smoothing = Number(slider.value); keep(); again(); } });
    const all = make("input", { type: "checkbox", checked: chosen.log.size > 0, onchange: () => {
      chosen.log = new Set(all.checked ? names : []);
      redraw();
      keep();
    } });
    const another = make("input", { type: "text", placeholder: "another run", "aria-label": "Add a run", size: "10" });
    const add = make("form", { class: "tools", onsubmit: (event) => {
      event.preventDefault();
      if (!another.value || chosen.runs.includes(another.value)) return;
      chosen.runs.push(another.value);
      again().then(() => { another.value = ""; fill(bar, tools()); keep(); }).catch((error) => { chosen.runs.pop(); another.setCustomValidity(error.message); another.reportValidity(); another.setCustomValidity(""); });
    } }, another, make("button", {}, "Add"));
    return [
      menu(count, list),
      select("X", AXES, chosen.x, (value) => { chosen.x = value; resetZoom(); keep(); }),
      make("label", {}, "Smoothing ", slider, " ", amount), make("label", {}, all, " Log y"),
      chosen.runs.length > 1 ? select("Baseline", [["", "none"], ...chosen.runs.map((run) => [run, labels[run] ?? run])], chosen.baseline, (value) => { chosen.baseline = value; redraw(); keep(); }) : null,
      button("Reset zoom", resetZoom), exported ? null : add, views?.element];
  }

  async function start() {
    await Promise.all([read([]), views && chooseSaved()]);
    const there = shown();
    arrange();
    if (!there.length) return;
    if (only) await load(there);
  }

  const count = make("summary", {});
  const bar = make("div", { class: "tools of-curves" });
  const forget = whenLookChanges(grid, () => { for (const panel of panels.values()) panel.resize(); }, redraw);
  await start();
  if (!only) fill(bar, tools());
  return {
    element: only ? grid : make("section", { "aria-label": "Curves" }, bar, grid),
    refresh,
    close: () => { isClosed = true; forget(); seen.disconnect(); for (const panel of panels.values()) panel.close(); },
  };
}

function choicesIn(query) {
  return { metrics: query.getAll("show"), log: new Set(query.getAll("log")), x: query.get("x") ?? "step", smoothing: Number(query.get("smooth") ?? 0), columns: query.get("columns") ?? "" };
}

// One metric: its chart, and a table of each run's value at the cursor, last value and extremes.
function onePanel(metric, { chosen, known, group, labels, only, attempts, act }) {
  const place = make("div", { class: "plot" });
  const said = make("div", { class: "said" });
  let drawn = null;
  let looks = ""; // all that the chart was made for, except its values
  let cells = [];
  let restarts = [];
  let isTall = false;

  const height = () => (isTall ? TALL : only ? MIDDLE : HEIGHT);

  function shownCurves() {
    return (known.get(metric) ?? []).map((curve, at) => ({ ...curve, xs: xsOf(curve, chosen.x), at })).filter((curve) => curve.xs !== null);
  }

  function draw() {
    panel.stale = false;
    const curves = shownCurves();
    const all = known.get(metric) ?? [];
    log.setAttribute("aria-pressed", String(chosen.log.has(metric)));
    if (!curves.length) {
      close();
      fill(place, emptyNote(!all.length ? `No run of these has written '${metric}' yet.` : `These runs have written ${LACKS[chosen.x]} with '${metric}': choose another x.`));
      fill(said);
      return;
    }
    const { xs, lines } = linesOf(curves);
    restarts = restartsOf(curves[0]);
    const wanted = JSON.stringify([chosen.x, chosen.log.has(metric), height(), variable("--ink"), lines.map((line) => ({ ...line, values: null }))]);
    if (drawn && wanted === looks) {
      drawn.setLines(xs, lines.map((line) => line.values));
    } else {
      const zoom = drawn ? drawn.zoom() : act.zoom();
      close();
      fill(place);
      drawn = chart(place, { xs, lines, x: chosen.x, log: chosen.log.has(metric), height: height(), group: group.key, onpoint: tell, moments: () => restarts });
      if (zoom) drawn.setZoom(zoom);
      looks = wanted;
    }
    legend(curves);
    tell(drawn.pointed());
  }

  function close() {
    drawn?.close();
    drawn = null;
  }

  // Returns {x, words} of each restart: the first value that was written after an attempt had begun.
  function restartsOf({ seconds, began, xs }) {
    return attempts().filter((each) => each.number > 0 && each.began !== null).map((each) => ({ x: xs[seconds.findIndex((after) => began + after >= each.began)], words: `attempt ${each.number}` })).filter((each) => each.x !== undefined);
  }

  function linesOf(curves) {
    const tables = curves.map((curve) => tableOf(curve));
    const joined = tables.length === 1 ? tables[0] : uPlot.join(tables);
    const lines = [];
    let column = 1;
    const same = new Set();
    for (const curve of curves) {
      const ink = colour(curve.at);
      const facts = [curve.count, curve.last, curve.lowest, curve.highest].join();
      const isBaseline = curve.run_id === chosen.baseline;
      const dash = isBaseline ? [6, 4] : same.has(facts) ? [5, 5] : DASHES[Math.floor(curve.at / 8) % DASHES.length];
      same.add(facts);
      curve.columns = curve.smooth.length ? [column, column + 1] : [column];
      if (curve.smooth.length) lines.push({ label: `${curve.run_id} (as written)`, colour: ink, values: joined[column++], width: 1, alpha: 0.3 });
      lines.push({ label: labels[curve.run_id] ?? curve.run_id, colour: ink, values: joined[column++], dash, width: isBaseline ? 3 : 1.8, run: curve.run_id });
    }
    return { xs: joined[0], lines };
  }

  // Draws a row for each curve: its value at the cursor or its last value, the difference to the baseline, and the extremes.
  function legend(curves) {
    const base = curves.find((curve) => curve.run_id === chosen.baseline);
    cells = [];
    const isOne = curves.length === 1;
    const isSmooth = curves.some((curve) => curve.smooth.length);
    const rows = curves.map((curve) => {
      const value = make("td", { class: "value" }, number(curve.last));
      const smooth = isSmooth ? make("td", { class: "value" }) : null;
      const apart = base ? make("td", {}, difference(curve.last, base.last, curve === base)) : null;
      cells.push({ curve, value, smooth, apart });
      const name = labels[curve.run_id] ?? curve.run_id;
      return make("tr", {}, make("th", { scope: "row" }, colourKey(colour(curve.at)), isOne ? make("span", { class: "hidden" }, name) : runLink(curve.run_id, name)), value, smooth, apart,
        make("td", {}, number(curve.lowest)), make("td", {}, number(curve.highest)), base ? null : make("td", {}, number(curve.count)));
    });
    const heads = [make("span", { class: "hidden" }, "Run"), "last", isSmooth ? "smoothed" : null, base ? "to baseline" : null, "min", "max", base ? null : "values"].filter((each) => each !== null);
    fill(said, make("table", { class: "legend", "aria-label": metric }, make("thead", {}, make("tr", {}, heads.map((each) => make("th", { scope: "col" }, each)))), make("tbody", {}, rows)),
      restarts.length ? make("p", { class: "small muted" }, restarts.map(({ x, words }) => `${words} began at ${whereX(x, chosen.x)}`).join("; ")) : null);
  }

  // While the cursor is on a chart, the columns `last` and `smoothed` have the values there instead of the last values.
  function tell(at) {
    const isHere = at !== null && drawn !== null;
    const read = (column, last) => (isHere ? drawn.plot.data[column]?.[at[column]] ?? last : last);
    const valueOf = ({ columns: [written], last }) => read(written, last);
    const base = cells.find(({ curve }) => curve.run_id === chosen.baseline);
    for (const { curve, value, smooth, apart } of cells) {
      value.textContent = number(valueOf(curve));
      if (smooth) smooth.textContent = curve.smooth.length ? number(read(curve.columns[1], curve.smooth.at(-1))) : "-";
      if (apart) apart.textContent = difference(valueOf(curve), valueOf(base.curve), curve === base.curve);
    }
    const head = said.querySelector("th:nth-child(2)");
    if (head) head.textContent = isHere ? `at ${whereX(drawn.plot.data[0][at[0]], chosen.x)}` : "last";
  }

  async function table() {
    const rows = (await act.table()).flatMap((curve) => curve.steps.map((step, at) => [curve.run_id, step, curve.epochs[at], curve.seconds.length ? curve.began + curve.seconds[at] : "", curve.values[at]]));
    save(`${metric}.csv`, csv(["run", "step", "epoch", "time", metric], rows), "text/csv");
  }

  const log = button("log", act.log, { "aria-pressed": "false", title: "Logarithmic y" });
  const tall = button("⤢", () => { isTall = !isTall; element.classList.toggle("whole", isTall); tall.setAttribute("aria-pressed", String(isTall)); draw(); }, { "aria-label": "Enlarge", "aria-pressed": "false", title: "Enlarge" });
  const more = menu(make("summary", { "aria-label": `More for ${metric}` }, "⋯"), button("Move left", () => act.move(-1)), button("Move right", () => act.move(1)), button("Save as SVG", () => { if (drawn) save(`${metric}.svg`, drawing(drawn.plot, metric, shownCurves().map((curve) => labels[curve.run_id] ?? curve.run_id)), "image/svg+xml"); }),
    button("Save as CSV", table), button("Hide", act.hide));
  const title = make("h2", { draggable: !only && "true" }, metric);
  const element = make("section", { class: "panel", "data-metric": metric, "aria-label": metric }, make("div", { class: "panel-head" }, title, log, tall, only ? null : more), place, said);
  title.addEventListener("dragstart", (event) => { event.dataTransfer.setData("text/plain", metric); event.dataTransfer.effectAllowed = "move"; });
  element.addEventListener("dragover", (event) => { if (!only && event.dataTransfer.types.includes("text/plain")) event.preventDefault(); });
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    const moved = event.dataTransfer.getData("text/plain");
    if (moved !== metric) act.drop(moved);
  });
  const panel = { element, draw, stale: true, visible: false, resize: () => drawn?.resize(height()), zoom: () => drawn?.zoom(), close };
  return panel;
}

function xsOf(curve, x) {
  if (x === "epoch") return curve.epochs.length ? curve.epochs : null;
  if (x === "time") return curve.seconds.length ? curve.seconds : null;
  if (x === "clock") return curve.seconds.length ? curve.seconds.map((each) => curve.began + each) : null;
  if (x === "share") {
    const [from, to] = [curve.steps[0], curve.steps.at(-1)];
    return curve.steps.map((step) => (100 * (step - from)) / (to - from || 1));
  }
  return curve.steps;
}

// Returns the columns of a chart with ascending x, each x once. After a restart, a time or an epoch may occur twice.
function tableOf(curve) {
  const order = curve.xs.map((_, at) => at).sort((one, other) => curve.xs[one] - curve.xs[other]);
  const once = order.filter((at, place) => place === order.length - 1 || curve.xs[at] !== curve.xs[order[place + 1]]);
  const pick = (values) => once.map((at) => values[at]);
  return curve.smooth.length ? [pick(curve.xs), pick(curve.values), pick(curve.smooth)] : [pick(curve.xs), pick(curve.values)];
}

function difference(value, base, isBase) {
  if (isBase) return "baseline";
  const apart = value - base;
  return `${apart > 0 ? "+" : ""}${number(apart, 3)}${base ? ` (${apart > 0 ? "+" : ""}${((100 * apart) / Math.abs(base)).toFixed(1)} %)` : ""}`;
}

// Returns the names with the requested metric first, then losses: train/loss before val_loss and rank_1/train/loss.
function inOrder(names, first) {
  const rating = (name) => (name === first ? -1 : name === "loss" ? 0 : name.split("/").length + (name.includes("loss") ? (name.includes("train") ? 0 : 100) : 1000) + (BOOKKEEPING.has(name) ? 10000 : 0));
  return [...new Set(names)].sort((one, other) => rating(one) - rating(other) || one.localeCompare(other));
}
