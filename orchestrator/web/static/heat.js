// A heat map of ranks over time with its axes and its scale. The arrow keys move from cell to cell, and a sentence describes the cell.
import { fill, make } from "./dom.js";
import { variable } from "./chart.js";
import { timeOfDay } from "./format.js";

const TALLEST = 420; // CSS pixels of all rows
const [LEAST, MOST] = [3, 26]; // CSS pixels of one row
const COLOURS = 6; // the style sheet has --heat-1 to --heat-6, the same in light and dark
const LABELS = 12; // rows that have a label
const LONGEST = 60000; // ms

// Returns the ms in which a map of a live run gets a further column. Its next request can wait so long, because nothing changes visibly.
export function untilNextColumn({ times, end }) {
  return times.length ? Math.min(LONGEST, (1000 * (end - times[0])) / times.length) : 0;
}

// `words` are {low, high, cell}: the meanings of the ends of the scale, and a function from a value to its text with the unit.
export function heatMap(words, tallest = TALLEST) {
  let map = null;
  let at = [0, 0];
  let scale = [];
  const canvas = make("canvas", { tabindex: "0", role: "img" });
  const cells = make("canvas"); // one pixel for each cell; it is drawn enlarged
  const marker = make("div", { class: "marker" });
  const rows = make("div", { class: "heat-rows", "aria-hidden": "true" });
  const times = make("div", { class: "heat-times", "aria-hidden": "true" });
  const legend = make("p", { class: "heat-legend" });
  const said = make("p", { role: "status", class: "muted small" }, "Point at a cell, or use the arrow keys on the map.");

  function paint() {
    const [from, to] = map.unit === "%" ? [0, Math.max(100, map.scale[1])] : map.scale;
    const startup = new Set(map.startup);
    const grey = channels(variable("--heat-startup"));
    cells.width = map.times.length;
    cells.height = map.rows.length;
    const pen = cells.getContext("2d");
    const image = pen.createImageData(cells.width, cells.height);
    let byte = 0;
    for (const row of map.rows) for (let column = 0; column < row.values.length; column += 1) {
      const value = row.values[column];
      if (value !== null) {
        const parts = startup.has(column) ? grey : shade(to > from ? (value - from) / (to - from) : 0.5);
        for (let part = 0; part < 3; part += 1) image.data[byte + part] = parts[part];
        image.data[byte + 3] = 255;
      }
      byte += 4;
    }
    pen.putImageData(image, 0, 0);
    const above = map.unit !== "%" && map.high > to * 1.001 ? " and more" : "";
    fill(legend, make("span", {}, `${words.cell(from)}${words.low ? ` (${words.low})` : ""}`), make("span", { class: "heat-scale", "aria-hidden": "true" }), make("span", {}, `${words.cell(to)}${above}${words.high ? ` (${words.high})` : ""}`),
      startup.size ? [make("span", { class: "swatch startup", "aria-hidden": "true" }), make("span", {}, "first steps of an attempt, not in the scale")] : null,
      make("span", { class: "swatch", "aria-hidden": "true" }), make("span", {}, "not measured"));
  }

  function shade(share) {
    const place = Math.min(1, Math.max(0, share)) * (COLOURS - 1);
    const below = Math.min(COLOURS - 2, Math.floor(place));
    return scale[below].map((part, each) => part + (place - below) * (scale[below + 1][each] - part));
  }

  function rowHeight() {
    return Math.min(MOST, Math.max(LEAST, tallest / map.rows.length));
  }

  function draw() {
    const width = canvas.parentElement?.clientWidth || 600;
    const height = Math.round(rowHeight() * map.rows.length);
    const dots = devicePixelRatio || 1;
    canvas.width = width * dots;
    canvas.height = height * dots;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(cells, 0, 0, canvas.width, canvas.height);
    canvas.setAttribute("aria-label", `${map.what} of ${map.rows.length} rows of ${map.of}s over ${map.times.length} moments, from ${words.cell(map.low)} to ${words.cell(map.high)}; arrow keys tell each cell`);
    const room = Math.min(LABELS, Math.max(1, Math.floor(height / 14)));
    const each = 2 ** Math.ceil(Math.log2(Math.max(1, map.rows.length / room)));
    fill(rows, map.rows.filter((_, number) => number % each === 0).map((row, place) => {
      const label = make("span", {}, place === 0 ? name(row) : numbers(row));
      label.style.top = `${(place * each + 0.5) * rowHeight()}px`;
      return label;
    }));
    const whole = map.end - map.times[0];
    fill(times, [0, 0.25, 0.5, 0.75, 1].map((share) => make("span", {}, timeOfDay(map.times[0] + share * whole))));
  }

  function name(row) {
    return `${map.of}${row.first === row.last ? "" : "s"} ${numbers(row)}`;
  }

  function tell() {
    const row = map.rows[at[1]];
    if (!row) return;
    const value = row.values[at[0]];
    const what = value === null ? "not measured" : `${words.cell(value)}${map.startup.includes(at[0]) ? ", a first step" : ""}`;
    fill(said, `${name(row)}, ${timeOfDay(map.times[at[0]])}: ${what}`);
    marker.hidden = false;
    marker.style.left = `${(100 * at[0]) / map.times.length}%`;
    marker.style.width = `${100 / map.times.length}%`;
    marker.style.top = `${at[1] * rowHeight()}px`;
    marker.style.height = `${rowHeight()}px`;
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

  const field = make("div", { class: "heat-field" }, canvas, marker);
  const element = make("div", { class: "heat" }, legend, rows, field, times, said);
  const sizes = new ResizeObserver(() => { if (map) draw(); });
  sizes.observe(field);
  marker.hidden = true;
  return {
    element,
    show: (found) => {
      map = found;
      scale = Array.from({ length: COLOURS }, (_, number) => channels(variable(`--heat-${number + 1}`)));
      paint();
      draw();
    },
    close: () => sizes.disconnect(),
  };
}

// Returns the label of a row: its rank, or its first and last rank if the row has several ranks.
export function numbers(row) {
  return row.first === row.last ? String(row.first) : `${row.first}–${row.last}`;
}

function channels(colour) {
  return [1, 3, 5].map((at) => Number.parseInt(colour.trim().slice(at, at + 2), 16));
}
