// The use of a run's machines: unusual states, a panel of lines or a map for each measure, and the newest numbers.
import { button, emptyNote, fill, make, section, table } from "./dom.js";
import { chart, colour, colourKey, whenLookChanges } from "./chart.js";
import { heatMap, numbers, untilNextColumn } from "./heat.js";
import { bytes, number } from "./format.js";
import { tellPace } from "./ranks.js";
import { ask, paced } from "./source.js";

const MOST_LINES = 8; // if there are more ranks, their lowest, median and highest values are shown
const MOST_NEWEST = 100;
const HEIGHT = 160; // CSS pixels of a panel's chart or map
const AGAIN = 2000; // ms: an agent takes a sample every 2 s
const UNITS = { "%": (value) => `${Math.round(value)} %`, "B/s": (value) => `${bytes(Math.round(value))}/s`, W: (value) => `${Math.round(value)} W`, "°C": (value) => `${Math.round(value)} °C` };
const OF_BYTES = [1, 2, 5, 10, 20, 50, 100, 200, 500]; // distances of marks, times a power of 1,024
const MARKS = { "B/s": [0, 1, 2, 3, 4, 5].flatMap((power) => OF_BYTES.map((each) => each * 1024 ** power)) };
const GROUP = "system";

export async function systemTab(place, { path, run }) {
  const sentences = make("div", { role: "status" });
  const grid = make("div", { class: "panels" });
  const newest = make("div");
  const panels = new Map();
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const panel = panels.get(target.dataset.measure);
      panel.visible = isIntersecting;
      if (isIntersecting && panel.stale) panel.refresh().catch(() => {}); // the stream of changes reports the failure
    }
  }, { rootMargin: "200px" });

  async function draw() {
    const [use, { findings, pace }] = await Promise.all([ask(`${path}/use`), ask(`${path}/pace`)]);
    tellPace(sentences, pace, findings, use.nodes.length ? "Nothing stands out on the run's machines." : null);
    for (const [measure, title] of Object.entries(use.measures)) {
      if (panels.has(measure)) continue;
      panels.set(measure, panelOf(path, measure, title[0].toUpperCase() + title.slice(1)));
      grid.append(panels.get(measure).element);
      seen.observe(panels.get(measure).element);
    }
    if (!panels.size) fill(grid, emptyNote(run().final ? "This run has no samples: it ended within 2 s, or its job has sampling: false." : "No sample yet: each node takes the first one after 2 s. A job with sampling: false takes none."));
    else grid.querySelector(":scope > .empty")?.remove();
    fill(newest, use.nodes.length ? section("The newest numbers", newestOf(use.nodes)) : null);
    for (const panel of panels.values()) panel.stale = performance.now() >= panel.next;
    await Promise.all([...panels.values()].filter((panel) => panel.visible && panel.stale).map((panel) => panel.refresh()));
  }

  const again = paced(AGAIN, draw);

  const forget = whenLookChanges(grid, () => { for (const panel of panels.values()) panel.resize(); }, () => { for (const panel of panels.values()) panel.draw(); });
  fill(place, make("section", { "aria-label": "System" }, sentences, grid), newest);
  await draw();
  return { refresh: (changed) => (changed.includes("use") ? again() : null), close: () => { seen.disconnect(); forget(); for (const panel of panels.values()) panel.close(); } };
}

// The panel of one measure. A button switches between lines and a map.
function panelOf(path, measure, title) {
  let map = null;
  let drawn = null;
  let isMap = false;
  const words = (value) => UNITS[map.unit](value);
  const cells = heatMap({ cell: words }, HEIGHT);
  const view = make("div", { class: "plot" });
  const key = make("p", { class: "muted small" });
  const turn = button("map", () => { isMap = !isMap; draw(); }, { "aria-pressed": "false", title: "Show each row over time as colours" });
  const element = make("section", { class: "panel", "data-measure": measure, "aria-label": title }, make("div", { class: "panel-head" }, make("h2", {}, title), turn), view, key);

  function draw() {
    drawn?.close();
    drawn = null;
    turn.setAttribute("aria-pressed", String(isMap));
    if (!map) return;
    if (!map.rows.length) {
      fill(view, emptyNote("Nothing measured yet."));
      return;
    }
    if (isMap) {
      fill(view, cells.element);
      fill(key);
      cells.show(map);
      return;
    }
    fill(view);
    const lines = linesOf(map);
    const tell = (at) => fill(key, lines.map((line, place) => {
      const values = line.values.filter((value) => value !== null);
      const value = at === null ? values.at(-1) : line.values[at[place + 1]];
      return make("span", { class: "entry" }, colourKey(line.colour), `${line.label} `, make("b", {}, value === undefined || value === null ? "-" : words(value)));
    }));
    const top = map.unit === "%" ? (_, low, high) => [0, Math.max(100, high ?? 0)] : (_, low, high) => [0, (high || 1) * 1.05];
    drawn = chart(view, { xs: map.times, lines, x: "clock", height: HEIGHT, group: GROUP, format: words, onpoint: tell, range: top, marks: MARKS[map.unit] });
    tell(null);
  }

  return {
    element, draw, stale: true, visible: false, next: 0,
    async refresh() {
      this.stale = false;
      ({ map } = await ask(`${path}/use`, { measure }));
      this.next = performance.now() + untilNextColumn(map);
      draw();
    },
    resize: () => drawn?.resize(),
    close: () => { drawn?.close(); cells.close(); },
  };
}

function linesOf(map) {
  if (map.rows.length <= MOST_LINES) {
    return map.rows.map((row, at) => ({ label: `${map.of} ${numbers(row)}`, colour: colour(at), values: row.values }));
  }
  const columns = map.times.map((_, column) => map.rows.map((row) => row.values[column]).filter((value) => value !== null).sort((one, other) => one - other));
  const at = (share) => columns.map((values) => (values.length ? values[Math.round(share * (values.length - 1))] : null));
  return [["highest", 1], ["median", 0.5], ["lowest", 0]].map(([name, share], place) => ({ label: `${name} of ${map.rows.length}`, colour: colour(place), values: at(share) }));
}

function newestOf(nodes) {
  const percent = (share) => (Number.isFinite(share) ? `${Math.round(share)} %` : "-");
  const rate = (value) => `${bytes(value)}/s`;
  const of = nodes.map(({ node, newest: n }) => [node, `${n.cpu.toFixed(1)} of ${n.cores} cores`, `${percent((100 * n.memory) / n.memory_total)} of ${bytes(n.memory_total)}`,
    `${rate(n.read)} read, ${rate(n.written)} written`, `${rate(n.received)} in, ${rate(n.sent)} out`]);
  const gpus = nodes.flatMap(({ node, newest }) => newest.gpus.map((gpu) => [node, gpu.index, percent(gpu.use), gpu.memory === null ? "-" : bytes(gpu.memory),
    gpu.power === null ? "-" : `${Math.round(gpu.power)} W`, gpu.temperature === null ? "-" : `${Math.round(gpu.temperature)} °C`, gpu.throttled || "-"]));
  const ranks = nodes.flatMap(({ node, newest }) => newest.ranks.map((rank) => [rank.rank, node, percent(100 * rank.cpu), bytes(rank.memory),
    `${rate(rank.read)} read, ${rate(rank.written)} written`, rank.waited === null ? "-" : percent(100 * rank.waited)]));
  return [
    table("Nodes", ["Node", "CPU", "Memory", "Disk", "Network"], of),
    gpus.length ? table("GPUs", ["Node", "GPU", "Use", "Memory", "Power", "Temperature", "Held back"], gpus) : null,
    ranks.length ? table(ranks.length > MOST_NEWEST ? `Ranks, the first ${number(MOST_NEWEST)}` : "Ranks", ["Rank", "Node", "CPU", "Memory", "Disk", "Waits for data"], ranks.slice(0, MOST_NEWEST)) : null];
}
