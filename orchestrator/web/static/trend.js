// The course of a run's first metric: a small line, and how much the metric has changed lately.
import { fill, make, svg } from "./dom.js";
import { number } from "./format.js";

const [WIDTH, HEIGHT] = [96, 20];
const LEAST = 0.005; // a smaller change counts as none

// Shows a trend in an element, or empties the element if the trend is null.
export function drawTrend(place, found) {
  if (!found) return fill(place);
  const { metric, better, means, steps, change } = found;
  const percent = `${number(Math.abs(100 * change), 2)} %`;
  const isLevel = change === null || Math.abs(change) < LEAST;
  const kind = isLevel ? "muted" : (change < 0) === (better === "lower") ? "better" : "worse";
  const over = steps === 1 ? "1 step" : `${number(steps)} steps`;
  const sentence = isLevel ? `it has hardly changed over the last ${over}` : `over the last ${over} it has ${change < 0 ? "fallen" : "risen"} by ${percent}`;
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const y = (value) => (high > low ? HEIGHT - 2 - ((HEIGHT - 4) * (value - low)) / (high - low) : HEIGHT / 2);
  const points = means.map((value, at) => `${((WIDTH * at) / (means.length - 1)).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, preserveAspectRatio: "none", role: "img", "aria-label": `${metric} by step, from ${number(means[0], 4)} to ${number(means.at(-1), 4)}; ${sentence}` }, svg("polyline", { points }));
  return fill(place, picture, make("span", { class: `small ${kind}`, "aria-hidden": "true", title: `${metric}: ${sentence}` }, isLevel ? "≈ level" : `${change < 0 ? "▼" : "▲"} ${percent}`, make("span", { class: "over" }, ` in ${over}`)));
}
