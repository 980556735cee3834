// The ranks of a run: the slowest rank, step times as a map and as a histogram, and a list of the ranks.
import { emptyNote, fill, make, section, stateBadge, svg, table } from "./dom.js";
import { heatMap, untilNextColumn } from "./heat.js";
import { duration, number } from "./format.js";
import { ask, paced } from "./source.js";

const AGAIN = 2000; // ms: an agent takes a sample every 2 s

export async function ranksTab(place, { path, run }) {
  const sentence = make("div", { role: "status" });
  const mapPlace = make("div");
  const bars = make("div");
  const list = make("div");
  const map = heatMap({ low: "fast", high: "slow", cell: seconds });

  async function drawSteps() {
    const found = await ask(`${path}/step_times`);
    const isThere = found.map.rows.length > 0;
    fill(mapPlace, isThere ? map.element : none(run()));
    if (isThere) map.show(found.map);
    fill(bars, !isThere ? null : section("How long steps take", found.histogram.counts.length ? histogram(found.histogram) : emptyNote("Only the first steps have been measured so far: the histogram leaves these out.")));
    return untilNextColumn(found.map);
  }

  async function drawPace() {
    const { pace } = await ask(`${path}/pace`);
    tellPace(sentence, pace, [], "Unknown: no rank has reported how long its steps take.");
  }

  async function drawRanks() {
    const { ranks, ranks_left: left } = await ask(`${path}/ranks`);
    const usual = median(ranks.map((each) => each.step_time).filter((each) => each !== null));
    const rows = ranks.map((each) => [each.rank, each.host, stateBadge(each.state), number(each.step), stepTime(each.step_time, usual),
      ...["cpu", "gpu", "waits"].map((name) => (name in each.use ? `${Math.round(100 * each.use[name])} %` : "-")), each.phase || "-", number(each.loss), each.end || "-"]);
    fill(list, ranks.length ? table("Those with trouble first, then the slowest", ["Rank", "Host", "State", "Step", "A step takes", "CPU", "GPU", "Waits for data", "Phase", "Loss", "End"], rows)
      : emptyNote(run().final ? "No rank was started: the run ended before its nodes had joined." : "No rank has been started yet: they are listed here when the run's nodes have joined."),
    left ? make("p", {}, `and ${left} more: the map above shows all ranks`) : null);
  }

  fill(place, section("Pace", sentence), section("Step times by rank", mapPlace), bars, section("Ranks", list));
  const ofSamples = [drawPace, drawSteps].map((draw) => paced(AGAIN, draw));
  const ranksAgain = paced(AGAIN, drawRanks);
  await Promise.all([drawPace(), drawRanks(), drawSteps()]);
  return {
    refresh: (changed) => Promise.all([
      ...(changed.includes("use") ? ofSamples.map((again) => again()) : []),
      ["use", "beats", "state"].some((each) => changed.includes(each)) ? ranksAgain() : null]),
    close: map.close,
  };
}

// Shows the sentence about the slowest rank and the findings, or else a text for neither. A bar marks sentences that report a problem.
export function tellPace(place, pace, findings, otherwise = null) {
  const said = [...(pace ? [pace.sentence] : []), ...findings];
  place.classList.toggle("warns", Boolean(pace?.why || pace?.slower || findings.length));
  fill(place, said.length ? said.map((each) => make("p", { class: "sentence" }, each)) : otherwise && make("p", { class: "muted" }, otherwise));
}

function none({ final }) {
  return emptyNote(final ? "No step time was measured in this run. orch takes them from heartbeats: programs of orchestrator.training and run.metric(...) send them."
    : "No step time is known yet. The first one comes with the second heartbeat of a rank, 2 s later at the soonest; programs of orchestrator.training and run.metric(...) send heartbeats.");
}

function stepTime(value, usual) {
  if (value === null) return "-";
  const over = usual > 0 ? value / usual - 1 : 0;
  return over >= 0.1 ? make("span", { class: "slow" }, `${seconds(value)} (+${Math.round(100 * over)} %)`) : seconds(value);
}

export function seconds(value) {
  return value < 1 ? `${number(Number((1000 * value).toPrecision(3)))} ms` : duration(value);
}

function median(values) {
  const order = [...values].sort((one, other) => one - other);
  return order.length ? order[Math.floor(order.length / 2)] : 0;
}

function histogram({ low, high, counts, above, median: middle }) {
  const [width, height] = [600, 120];
  const most = Math.max(...counts);
  const each = width / counts.length;
  const bars = counts.map((count, at) => svg("rect", { x: at * each + 0.5, y: height - (height * count) / most, width: Math.max(1, each - 1), height: (height * count) / most, class: "bar" }));
  const where = (width * (middle - low)) / (high - low || 1);
  const mark = svg("path", { d: `M${where} 0v${height}`, class: "median" });
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "histogram", role: "img", "aria-label": `Histogram of step times from ${seconds(low)} to ${seconds(high)}; half of all steps took less than ${seconds(middle)}` }, ...bars, mark);
  const total = Math.round(counts.reduce((sum, count) => sum + count, above));
  return make("div", { class: "steps" }, picture, make("div", { class: "heat-times" }, [0, 0.25, 0.5, 0.75, 1].map((share) => make("span", {}, seconds(low + share * (high - low))))),
    make("p", { class: "muted small" }, `About ${number(total)} steps of all ranks; half of them took less than ${seconds(middle)} (the line).${above ? ` ${number(Math.round(above))} took longer than shown.` : ""} First steps are left out.`));
}
