// One chart of lines, drawn by uPlot: its axes, the cursor that it shares with other charts, and the files that are saved from it.
import { make, svg } from "./dom.js";
import { day, duration, number, timeOfDay } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const FONT = "12px system-ui";
const LABELS = { step: "step", epoch: "epoch", time: "since its start", share: "of the run" };
const COLOURS = 8; // the style sheet has --curve-1 to --curve-8

export function colour(place) {
  return variable(`--curve-${1 + (place % COLOURS)}`);
}

export function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The small bar beside a name that has the colour of its line.
export function colourKey(ink) {
  const key = make("span", { class: "key" });
  key.style.background = ink;
  return key;
}

// Calls `resize` when the width of an element changes, and `redraw` when the system's colours do, until the returned function is called.
export function whenLookChanges(element, resize, redraw) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const sizes = new ResizeObserver(resize);
  dark.addEventListener("change", redraw);
  sizes.observe(element);
  return () => { sizes.disconnect(); dark.removeEventListener("change", redraw); };
}

// `lines` are {label, colour, values, dash, width, alpha}, all over the same `xs`; `x` is step, epoch, time, clock or share.
// When the cursor moves on any chart of the same `group`, `onpoint` receives the index of each line's point, or null.
// `moments` returns {x, words} of each vertical line.
export function chart(place, { xs, lines, x = "step", log = false, format = number, height = 220, group, onpoint, range = null, marks: distances, moments = () => [] }) {
  const grid = { stroke: variable("--line"), width: 1 };
  const axis = { stroke: variable("--muted"), grid, ticks: grid, font: FONT, labelFont: FONT };
  const plot = new uPlot({
    width: width(place), height,
    legend: { show: false },
    scales: { x: { time: x === "clock" }, y: { distr: log ? 3 : 1, range: range && !log ? range : undefined } },
    axes: [
      { ...axis, label: LABELS[x], labelSize: 18, size: 34, values: (_, marks, _at, _space, step) => marks.map((mark) => (x === "clock" ? moment(mark, step) : atX(mark, x))) },
      { ...axis, incrs: distances, size: (_, words) => 16 + 7 * Math.max(3, ...(words ?? []).map((each) => each.length)), values: (_, marks) => marks.map((mark) => (mark === null ? "" : format(mark))) },
    ],
    cursor: { sync: { key: group, scales: ["x", null] }, points: { size: (self, at) => (self.series[at].alpha === 1 ? 7 : 0) }, dataIdx: nearest },
    series: [{}, ...lines.map((line) => ({
      label: line.label, stroke: line.colour, width: line.width ?? 1.8, dash: line.dash, alpha: line.alpha ?? 1, spanGaps: true,
      points: { show: (self, at) => self.data[at].filter((value) => value !== null).length < 3 },
    }))],
    hooks: { setCursor: [(self) => onpoint?.(pointed(self))], draw: [(self) => drawMoments(self, moments(), axis.stroke)] },
  }, [xs, ...lines.map((line) => positive(line.values, log))], place);
  plot.root.querySelector("canvas").setAttribute("aria-hidden", "true"); // the text beside it has the same content
  return {
    plot,
    pointed: () => pointed(plot),
    zoom: () => zoomOf(plot),
    setZoom: (zoom) => plot.setScale("x", zoom),
    // Shows new values. The zoom and the cursor stay.
    setLines: (newXs, values) => plot.batch(() => {
      const zoom = zoomOf(plot);
      plot.setData([newXs, ...values.map((each) => positive(each, log))], zoom === null);
      if (zoom) plot.setScale("x", zoom);
    }),
    resize: (newHeight = height) => plot.setSize({ width: width(place), height: newHeight }),
    close: () => plot.destroy(),
  };
}

function width(place) {
  return Math.max(240, place.clientWidth || 400);
}

function positive(values, log) {
  return log ? values.map((value) => (value > 0 ? value : null)) : values;
}

// Returns {min, max} of the x that the reader has zoomed to, or null.
function zoomOf(plot) {
  const { min, max } = plot.scales.x;
  const xs = plot.data[0];
  return xs.length > 0 && min !== null && (min > xs[0] || max < xs.at(-1)) ? { min, max } : null;
}

function pointed(plot) {
  return plot.cursor.left < 0 ? null : plot.cursor.idxs;
}

function drawMoments({ ctx, bbox, valToPos, scales }, moments, ink) {
  const scale = devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = ink;
  ctx.lineWidth = scale;
  ctx.setLineDash([3 * scale, 3 * scale]);
  ctx.font = `${11 * scale}px system-ui`;
  for (const { x, words } of moments.filter((each) => each.x >= scales.x.min && each.x <= scales.x.max)) {
    const at = valToPos(x, "x", true);
    const isRight = at > bbox.left + 0.8 * bbox.width;
    ctx.textAlign = isRight ? "right" : "left";
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(words, at + (isRight ? -4 : 4) * scale, bbox.top + 12 * scale);
  }
  ctx.restore();
}

// A line without a point at the cursor's x shows its nearest point.
function nearest(plot, line, at) {
  const values = plot.data[line];
  if (line === 0 || values[at] !== null) return at;
  for (let away = 1; away < values.length; away += 1) {
    if ((values[at - away] ?? null) !== null) return at - away;
    if ((values[at + away] ?? null) !== null) return at + away;
  }
  return at;
}

// Returns a wall-clock time with the precision that marks at a distance of `step` seconds need.
function moment(value, step) {
  return step >= 86400 ? day(value) : timeOfDay(value).slice(0, step >= 60 ? 5 : 8);
}

export function atX(value, x) {
  if (value === null || value === undefined) return "";
  if (x === "clock") return timeOfDay(value);
  if (x === "time") return duration(value);
  if (x === "share") return `${number(value)} %`;
  return Math.abs(value) >= 10000 && x === "step" ? `${number(value / 1000)}k` : number(value);
}

// Names an x in a sentence: at step 1,234, at 17:00:42.
export function whereX(value, x) {
  return ["step", "epoch"].includes(x) ? `${x} ${number(value)}` : `${atX(value, x)}${x === "share" ? " of the run" : ""}`;
}

// -- files that are saved from a chart

export function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name.replaceAll(/[^\w.-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export function csv(heads, rows) {
  const cell = (value) => {
    const text = String(value ?? "");
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [heads, ...rows].map((row) => `${row.map(cell).join(",")}\n`).join("");
}

// Returns the text of an SVG file that shows the chart as it is now, with a legend.
export function drawing(plot, title, names) {
  const scale = devicePixelRatio || 1;
  const box = { left: plot.bbox.left / scale, top: 34, width: plot.bbox.width / scale, height: plot.bbox.height / scale };
  const down = box.top - plot.bbox.top / scale;
  const ink = variable("--ink");
  const text = (words, x, y, anchor = "start") => svg("text", { x, y, fill: ink, "text-anchor": anchor, "font-size": 12, "font-family": "sans-serif" }, words);
  const parts = [text(title, box.left, 20)];
  for (const [at, isX] of [[0, true], [1, false]]) {
    const axis = plot.axes[at];
    (axis._splits ?? []).forEach((mark, place) => {
      if (mark === null || axis._values?.[place] === undefined) return;
      const where = plot.valToPos(mark, isX ? "x" : "y");
      const [x, y] = isX ? [box.left + where, box.top] : [box.left, box.top + where];
      parts.push(svg("path", { d: isX ? `M${x} ${y}v${box.height}` : `M${x} ${y}h${box.width}`, stroke: variable("--line"), fill: "none" }));
      parts.push(isX ? text(axis._values[place], x, box.top + box.height + 16, "middle") : text(axis._values[place], box.left - 6, y + 4, "end"));
    });
  }
  const rows = [];
  plot.series.forEach((line, at) => {
    if (at === 0 || !line.show) return;
    const points = plot.data[at].map((value, place) => (value === null || value === undefined ? null : `${(box.left + plot.valToPos(plot.data[0][place], "x")).toFixed(1)},${(box.top + plot.valToPos(value, "y")).toFixed(1)}`)).filter(Boolean);
    const stroke = typeof line._stroke === "string" ? line._stroke : line.stroke(plot, at);
    parts.push(svg("polyline", { points: points.join(" "), fill: "none", stroke, "stroke-width": line.width, "stroke-opacity": line.alpha, "stroke-dasharray": (line.dash ?? []).join(" "), "clip-path": "url(#box)" }));
    if (names.includes(line.label) && line.alpha === 1) rows.push([line.label, stroke]);
  });
  const bottom = box.top + box.height + 34;
  rows.forEach(([label, stroke], at) => {
    parts.push(svg("path", { d: `M${box.left} ${bottom + 18 * at - 4}h18`, stroke, "stroke-width": 3 }), text(label, box.left + 24, bottom + 18 * at));
  });
  const clip = svg("clipPath", { id: "box" }, svg("rect", { x: box.left, y: box.top, width: box.width, height: box.height }));
  const whole = svg("svg", { xmlns: SVG, width: plot.width, height: Math.max(plot.height + down, bottom + 18 * rows.length) },
    svg("rect", { width: "100%", height: "100%", fill: variable("--surface") }), clip, ...parts);
  return new XMLSerializer().serializeToString(whole);
}
