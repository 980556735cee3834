// Ranks x time as a map of cells on a canvas; the arrow keys go from cell to cell, and the cell's words are said.
import { fill, make, section, select, table } from "./dom.js";
import { ask } from "./source.js";
import { bytes, duration, number } from "./format.js";

const HEIGHT = 12; // of a rank's row, in CSS pixels; less where there are many
const TALLEST = 480;
const MOST_NEWEST = 100; // ranks

export function stepTimesPanel(run) {
  const none = "Step times are known from the moment on that this page, or another look at the run, began to watch.";
  return heatPanel("Step times", none, () => ask(`/api/runs/${encodeURIComponent(run)}/heat`));
}

// How busy the run is: a map of one measure, and the newest numbers of its nodes, GPUs and ranks.
export async function usePanel(run) {
  const controls = make("div", { class: "tools" });
  const newest = make("div");
  let measure = "";
  const load = async () => {
    const use = await ask(`/api/runs/${encodeURIComponent(run)}/use`, { measure });
    const names = Object.entries(use.measures);
    if (names.length !== controls.querySelectorAll("option").length) {
      fill(controls, names.length ? select("Map of", names, use.measure, (value) => { measure = value; panel.refresh(); }) : null);
    }
    fill(newest, newestOf(use.nodes));
    return use.map;
  };
  const none = "No samples: a first one takes 2 s, and none is taken with sampling: false.";
  const panel = await heatPanel("System metrics", none, load, { before: controls, after: newest });
  return panel;
}

function newestOf(nodes) {
  const percent = (share) => (Number.isFinite(share) ? `${Math.round(share)} %` : "-");
  const rate = (value) => `${bytes(value)}/s`;
  const of = nodes.map(({ node, newest: n }) => [node, `${n.cpu.toFixed(1)} of ${n.cores} cores`, `${percent((100 * n.memory) / n.memory_total)} of ${bytes(n.memory_total)}`,
    `${rate(n.read)} read, ${rate(n.written)} written`, `${rate(n.received)} in, ${rate(n.sent)} out`]);
  const gpus = nodes.flatMap(({ node, newest }) => newest.gpus.map((gpu) => [node, gpu.index, percent(gpu.use), gpu.memory === null ? "-" : bytes(gpu.memory),
    gpu.power === null ? "-" : `${Math.round(gpu.power)} W`, gpu.temperature === null ? "-" : `${Math.round(gpu.temperature)} °C`, gpu.throttled || "-"]));
  const ranks = nodes.flatMap(({ newest }) => newest.ranks.map((rank) => [rank.rank, percent(100 * rank.cpu), bytes(rank.memory),
    rank.waited === null ? "-" : percent(100 * rank.waited)]));
  return [
    of.length ? table("Nodes, the newest numbers", ["Node", "CPU", "Memory", "Disk", "Network"], of) : null,
    gpus.length ? table("GPUs, the newest numbers", ["Node", "GPU", "Use", "Memory", "Power", "Temperature", "Held back"], gpus) : null,
    ranks.length ? table("Ranks, the newest numbers", ["Rank", "CPU", "Memory", "Waits for data"], ranks.slice(0, MOST_NEWEST)) : null];
}

async function heatPanel(title, nothing, load, { before = null, after = null } = {}) {
  let map = null;
  let at = [0, 0];
  const canvas = make("canvas", { tabindex: "0", role: "img", class: "heat" });
  const said = make("p", { role: "status" });
  const none = make("p", {}, nothing);
  const cells = make("canvas"); // a pixel a cell, drawn as large as there is room
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function paint() {
    const style = getComputedStyle(document.documentElement);
    const [low, high] = ["--low", "--high"].map((name) => channels(style.getPropertyValue(name)));
    const [from, to] = map.unit === "%" ? [0, 100] : [map.low, map.high];
    const span = to > from ? to - from : Infinity;
    cells.width = map.times.length;
    cells.height = map.rows.length;
    const pen = cells.getContext("2d");
    const image = pen.createImageData(cells.width, cells.height);
    let byte = 0;
    for (const row of map.rows) for (const value of row.values) {
      if (value !== null) {
        const share = Math.min(1, Math.max(0, (value - from) / span));
        for (let part = 0; part < 3; part += 1) image.data[byte + part] = low[part] + share * (high[part] - low[part]);
        image.data[byte + 3] = 255;
      }
      byte += 4;
    }
    pen.putImageData(image, 0, 0);
  }

  function draw() {
    const rows = map.rows.length;
    none.hidden = rows > 0;
    canvas.hidden = rows === 0;
    if (!rows) return;
    const width = canvas.parentElement?.clientWidth || 600;
    const height = Math.min(TALLEST, rows * HEIGHT);
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(cells, 0, 0, canvas.width, canvas.height);
    canvas.setAttribute("aria-label", `${map.what} of ${rows} rows of ${map.of}s over ${map.times.length} moments, from ${number(map.low)} to ${number(map.high)} ${map.unit}; arrow keys tell each cell`);
  }

  function tell() {
    const row = map.rows[at[1]];
    if (!row) return;
    const ranks = row.first === row.last ? `${map.of} ${row.first}` : `${map.of}s ${row.first} to ${row.last}`;
    const value = row.values[at[0]];
    const when = duration(map.times[at[0]] - map.times[0]);
    fill(said, `${ranks}, ${when} after the first look: ${value === null ? "nothing known" : `${number(value)} ${map.unit}`}`);
  }

  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || !map) return;
    event.preventDefault();
    at = [Math.min(Math.max(0, at[0] + step[0]), map.times.length - 1), Math.min(Math.max(0, at[1] + step[1]), map.rows.length - 1)];
    tell();
  });
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    at = [Math.floor(((event.clientX - box.left) / box.width) * map.times.length), Math.floor(((event.clientY - box.top) / box.height) * map.rows.length)];
    tell();
  });

  async function refresh() {
    map = await load();
    if (map.rows.length) paint();
    draw();
  }

  await refresh();
  const repaint = () => { if (map.rows.length) paint(); draw(); };
  dark.addEventListener("change", repaint);
  const sizes = new ResizeObserver(() => draw());
  const element = section(title, before, none, canvas, said, after);
  sizes.observe(element);
  return { element, refresh, close: () => { sizes.disconnect(); dark.removeEventListener("change", repaint); } };
}

function channels(colour) {
  return [1, 3, 5].map((at) => Number.parseInt(colour.trim().slice(at, at + 2), 16));
}
