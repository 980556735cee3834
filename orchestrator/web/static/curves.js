// A metric of several runs over each other, drawn by uPlot: zoom by dragging or by buttons, smoothed, by step or time.
import { button, fill, make, runLink, section, select, table } from "./dom.js";
import { number } from "./format.js";
import { ask, exported, follow } from "./source.js";

const COLOURS = 8; // --curve-1 and on, of the style sheet
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

export async function showCurves(main, _words, query, onlink) {
  const runs = query.getAll("run");
  const panel = await curvesPanel(runs, query.get("metric") ?? "");
  fill(main, make("h1", {}, "Curves"), panel.element);
  const stops = runs.map((run) => follow(run, (told) => { if (told.changed.includes("metrics")) panel.refresh(); }, onlink));
  return () => { stops.forEach((stop) => stop()); panel.close(); };
}

// Returns {element, refresh, close}; `names` are the metrics to choose from, those of the runs by default.
export async function curvesPanel(runs, first) {
  let metric = first || "loss";
  let axis = "step";
  let smoothing = "0";
  let plot = null;
  let found = null;
  let isZoomed = false;
  const place = make("div", { class: "plot" });
  const said = make("div", { class: "said" });
  const tools = make("div", { class: "tools" });
  const dark = matchMedia("(prefers-color-scheme: dark)");

  async function load() {
    const asked = { run: runs, metric };
    if (!exported) Object.assign(asked, { axis, smoothing });
    found = await ask("/api/curves", asked);
  }

  function data() {
    const curves = found.curves.filter((curve) => curve.points.length);
    return curves.length ? uPlot.join(curves.map((each) => [each.points.map((at) => at[0]), each.points.map((at) => at[1])])) : null;
  }

  function draw() {
    plot?.destroy();
    plot = null;
    const values = data();
    if (!values) {
      fill(place, make("p", {}, `No run of these has a metric '${metric}' yet.${found.hint ? ` To see one, ${found.hint}.` : ""}`));
      return;
    }
    fill(place);
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink");
    const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    const line = { stroke: ink, grid, ticks: grid, font: "12px system-ui" };
    const x = axis === "time" ? "seconds" : "step";
    plot = new uPlot({
      width: Math.max(260, place.clientWidth || 600), height: 300,
      scales: { x: { time: false } },
      axes: [{ ...line, label: x, labelFont: "12px system-ui" }, { ...line, size: 64 }],
      series: [{ label: x }, ...found.curves.filter((curve) => curve.points.length).map((curve, at) => ({
        label: curve.run_id, stroke: style.getPropertyValue(`--curve-${1 + (at % COLOURS)}`), width: 2, spanGaps: true,
        dash: DASHES[Math.floor(at / COLOURS) % DASHES.length], points: { show: curve.points.length < 3 },
      }))],
      hooks: { setSelect: [() => { isZoomed = true; }] },
    }, values, place);
    plot.over.addEventListener("dblclick", () => { isZoomed = false; });
    plot.root.querySelector("canvas").setAttribute("aria-hidden", "true"); // the table below tells the same
  }

  function tell() {
    const rows = found.curves.map((curve) => [runLink(curve.run_id), number(curve.last), number(curve.lowest),
      number(curve.highest), number(curve.count)]);
    fill(said, found.curves.length ? table(`${metric}`, ["Run", "Last", "Lowest", "Highest", "Values"], rows) : null);
  }

  function zoom(factor) {
    if (!plot) return;
    const { min, max } = plot.scales.x;
    const middle = (min + max) / 2;
    const half = ((max - min) / 2) * factor;
    isZoomed = true;
    plot.setScale("x", { min: middle - half, max: middle + half });
  }

  async function redraw() {
    await load();
    isZoomed = false;
    draw();
    tell();
  }

  async function refresh() {
    const before = found.curves.map((curve) => curve.run_id).join();
    await load();
    if (await choose()) offer();
    const values = data();
    if (!plot || !values || before !== found.curves.map((curve) => curve.run_id).join()) draw();
    else plot.setData(values, !isZoomed);
    tell();
  }

  // Takes a metric that is there if the present one is not; returns whether there are other metrics to choose from.
  async function choose() {
    const before = names.join();
    names = found.names.length ? found.names : [metric];
    if (!names.includes(metric)) {
      // train/loss comes before val_loss and rank_1/train/loss
      const rating = (name) => name.split("/").length + (name.includes("train") ? 0 : 1000);
      const inOrder = [...names].sort((one, other) => rating(one) - rating(other));
      metric = inOrder.find((name) => name.includes("loss")) ?? inOrder[0];
      await load();
    }
    return names.join() !== before;
  }

  function offer() {
    fill(chooser, select("Metric", names, metric, (value) => { metric = value; redraw(); }));
  }

  let names = [];
  const chooser = make("span", {});
  await load();
  await choose();
  offer();
  const slider = make("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: "0",
    onchange: () => { smoothing = slider.value; redraw(); } });
  fill(tools, chooser,
    exported ? null : select("By", [["step", "step"], ["time", "time"]], axis, (value) => { axis = value; redraw(); }),
    exported ? null : make("label", {}, "Smoothing ", slider),
    button("+", () => zoom(0.5), { "aria-label": "Zoom in" }), button("−", () => zoom(2), { "aria-label": "Zoom out" }),
    button("Reset zoom", () => { isZoomed = false; draw(); }, { "aria-label": "Show all of it" }));
  const sizes = new ResizeObserver(() => {
    if (!plot) draw();
    else if (place.clientWidth && plot.width !== place.clientWidth) plot.setSize({ width: Math.max(260, place.clientWidth), height: 300 });
  });
  sizes.observe(place);
  dark.addEventListener("change", draw);
  tell();
  return {
    element: section("Curves", tools, place, said), refresh,
    close: () => { sizes.disconnect(); dark.removeEventListener("change", draw); plot?.destroy(); },
  };
}
