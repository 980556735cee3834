// A sweep's points, the best first, and their curves over each other.
import { curvesPanel } from "./curves.js";
import { fill, make, runLink, select, stateBadge, table } from "./dom.js";
import { number } from "./format.js";
import { ask, exported, follow } from "./source.js";

const MOST_CURVES = 8;

export async function showSweep(main, [sweep], _query, onlink) {
  const path = `/api/sweeps/${encodeURIComponent(sweep)}`;
  let metric = "";
  let names = [];
  const points = make("div");
  const place = make("div");
  let panel = null;

  async function draw() {
    const found = await ask(path, { metric });
    const keys = [...new Set(found.rows.flatMap((row) => Object.keys(row.values)))];
    const rows = found.rows.map((row) => [row.rank === 1 ? make("strong", {}, "1 (best)") : row.rank ?? "-", runLink(row.run_id), stateBadge(row.state),
      ...keys.map((key) => row.values[key] ?? "-"), number(row.value)]);
    fill(points, found.note ? make("p", {}, found.note) : null,
      exported || !names.length ? null : select("Ranked by", [["", found.metric ?? "the job's metric"], ...names], metric, (value) => { metric = value; draw(); }),
      table(found.metric ? `Points by ${found.metric}, the ${found.better === "lower" ? "lowest" : "highest"} first` : "Points",
        ["Rank", "Run", "State", ...keys, found.metric ?? "Value"], rows));
    return found.rows.map((row) => row.run_id);
  }

  const runs = await draw();
  names = exported ? [] : (await ask("/api/curves", { run: runs.slice(0, MOST_CURVES), metric: "loss" })).names;
  await draw();
  panel = await curvesPanel(runs.slice(0, MOST_CURVES), "");
  fill(main, make("h1", {}, `Sweep ${sweep}`), points, fill(place, panel.element));
  let work = Promise.resolve();
  const stop = follow(null, (told) => {
    if (told.rows.some((row) => row.sweep === sweep)) work = work.then(() => Promise.all([draw(), panel.refresh()])).catch((error) => onlink(error.message));
  }, onlink);
  return () => { stop(); panel.close(); };
}
