// Drawings of a sweep: parallel coordinates, and points over axes. The tables beside them have the same content.
import { make, svg } from "./dom.js";
import { number } from "./format.js";

const HEIGHT = 260;
const MOST_TICKS = 7;
const SPREAD_OF_LOG = 50; // a wider range of positive numbers gets a logarithmic axis

// Returns an axis for these values: the place of a value, from 0 to 1, and the ticks. Words are at even distances.
export function axisOf(values) {
  const there = values.filter((value) => value !== null && value !== undefined);
  if (there.some((value) => typeof value !== "number")) {
    const words = [...new Set(there.map(String))].sort();
    const place = (value) => (words.length > 1 ? words.indexOf(String(value)) / (words.length - 1) : 0.5);
    return { at: place, ticks: words.map((word) => ({ at: place(word), text: word })) };
  }
  const [low, high] = [Math.min(...there), Math.max(...there)];
  const isLog = low > 0 && high / low >= SPREAD_OF_LOG;
  const to = isLog ? Math.log : (value) => value;
  const span = to(high) - to(low);
  const at = (value) => (span > 0 ? (to(value) - to(low)) / span : 0.5);
  const distinct = [...new Set(there)].sort((one, other) => one - other);
  const marks = distinct.length <= MOST_TICKS ? distinct : isLog ? powers(low, high) : round(low, high);
  return { at, isLog, ticks: marks.map((value) => ({ at: at(value), text: number(value, 4) })) };
}

// Returns round numbers between these two.
function round(low, high) {
  const most = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(most));
  const step = [5, 2, 1].map((each) => each * power).find((each) => each <= most) ?? power;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, at) => (first + at) * step);
}

function powers(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  return Array.from({ length: Math.floor(Math.log10(high) + 1e-9) - first + 1 }, (_, at) => Number(`1e${first + at}`));
}

// A drawing that is redrawn for each width. `draw` returns its parts for a width.
function drawing(label, height, draw) {
  const picture = svg("svg", { role: "img", "aria-label": label, height, width: "100%" });
  const element = make("div", { class: "drawing" }, picture);
  let width = 0;
  const sizes = new ResizeObserver(() => {
    if (!element.clientWidth || element.clientWidth === width) return;
    width = element.clientWidth;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...draw(width).filter(Boolean));
  });
  sizes.observe(element);
  return { element, close: () => sizes.disconnect() };
}

// A line per run over one axis per setting, with the metric at the right. The best run is highlighted.
export function parallel(label, names, rows, { best, onpick }) {
  const axes = names.map((name) => ({ name, ...axisOf(rows.map((row) => row.cells[name])) }));
  const [top, bottom] = [34, HEIGHT - 14];
  return drawing(label, HEIGHT, (width) => {
    const [left, right] = [64, width - 64];
    const x = (at) => (axes.length > 1 ? left + ((right - left) * at) / (axes.length - 1) : (left + right) / 2);
    const y = (axis, value) => bottom - (bottom - top) * axis.at(value);
    const inOrder = [...rows].sort((one, other) => (one.id === best) - (other.id === best));
    const lines = inOrder.map((row) => {
      const there = axes.map((axis, at) => [axis, at]).filter(([axis]) => row.cells[axis.name] !== null && row.cells[axis.name] !== undefined);
      const points = there.map(([axis, at]) => `${x(at)},${y(axis, row.cells[axis.name])}`).join(" ");
      return svg("polyline", { points, class: row.id === best ? "line best" : "line", "data-run": row.id, onclick: () => onpick(row.id) }, svg("title", {}, row.label));
    });
    const marks = axes.map((axis, at) => svg("g", {}, svg("line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "axis" }),
      svg("text", { x: x(at), y: 14, "text-anchor": "middle", class: "name" }, axis.isLog ? `${axis.name} (log)` : axis.name),
      axis.ticks.map((tick) => svg("text", { x: x(at) + (at === axes.length - 1 ? 6 : -6), y: bottom - (bottom - top) * tick.at + 4, "text-anchor": at === axes.length - 1 ? "start" : "end" }, tick.text))));
    return [...lines, ...marks];
  });
}

// Points over a setting or a number. `steps` is a list of [x, y], drawn as a line of stairs.
export function scatter(label, [nameOfX, nameOfY], points, { best, steps = [], onpick }) {
  const [axisX, axisY] = [axisOf(points.map((point) => point.x)), axisOf([...points.map((point) => point.y), ...steps.map((step) => step[1])])];
  const [top, bottom] = [12, HEIGHT - 40];
  return drawing(label, HEIGHT, (width) => {
    const [left, right] = [64, width - 16];
    const x = (value) => left + 12 + (right - left - 24) * axisX.at(value);
    const y = (value) => bottom - 8 - (bottom - top - 16) * axisY.at(value);
    const room = Math.max(1, Math.ceil((axisX.ticks.length * 60) / (right - left)));
    const stairs = steps.map(([at, value], place) => `${place ? `${x(at)},${y(steps[place - 1][1])} ` : ""}${x(at)},${y(value)}`).join(" ");
    return [
      svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }), svg("line", { x1: left, x2: left, y1: top, y2: bottom, class: "axis" }),
      ...axisX.ticks.filter((_, at) => at % room === 0).map((tick) => svg("text", { x: left + 12 + (right - left - 24) * tick.at, y: bottom + 16, "text-anchor": "middle" }, tick.text)),
      ...axisY.ticks.map((tick) => svg("text", { x: left - 6, y: bottom - 4 - (bottom - top - 16) * tick.at, "text-anchor": "end" }, tick.text)),
      svg("text", { x: (left + right) / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "name" }, axisX.isLog ? `${nameOfX} (log)` : nameOfX),
      svg("text", { x: 12, y: (top + bottom) / 2, "text-anchor": "middle", class: "name", transform: `rotate(-90 12 ${(top + bottom) / 2})` }, axisY.isLog ? `${nameOfY} (log)` : nameOfY),
      stairs ? svg("polyline", { points: stairs, class: "line best" }) : null,
      ...points.map((point) => svg("circle", { cx: x(point.x), cy: y(point.y), r: point.id === best ? 6 : 4, class: point.id === best ? "dot best" : "dot", "data-run": point.id, onclick: () => onpick(point.id) }, svg("title", {}, `${point.label}: ${number(point.y)}`))),
    ];
  });
}
