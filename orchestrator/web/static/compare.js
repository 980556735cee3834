// Several runs side by side: the columns in which they differ, what they used, and their curves.
import { Columns, column, textOf } from "./columns.js";
import { curvesPanel } from "./curves.js";
import { addressOf, addressOfDiff, emptyNote, fill, make, runLink, section, select, stateBadge, wide } from "./dom.js";
import { bytes, duration, number } from "./format.js";
import { ask, pathOf } from "./source.js";

const OWN = ["state", "profile", "ranks", "submitted", "took", "restarts", "tag", "note", "reason"];
// Totals of a run, from its samples and events.
const USED = {
  "memory of a rank, at most": (used) => bytes(used.rank_memory),
  "memory of a GPU, at most": (used) => bytes(used.gpu_memory),
  "GPU use, mean": (used) => (used.gpu_use === null ? "-" : `${Math.round(used.gpu_use)} %`),
  "a step takes, median": (used) => duration(used.step_seconds),
  "GPU time": ({ hours }) => (hours.gpu_hours ? `${number(hours.gpu_hours, 4)} h` : "-"),
  "rank time": ({ hours }) => (hours.rank_hours ? `${number(hours.rank_hours, 4)} h` : "-"),
};

export async function showCompare(main, _words, query) {
  const known = new Map((await ask("/api/runs")).map((row) => [row.run_id, row]));
  const rows = query.getAll("run").map((id) => known.get(id)).filter(Boolean);
  const runs = rows.map((row) => row.run_id);
  const place = make("div");
  let all = false;
  if (!rows.length) {
    fill(main, make("h1", {}, "Compare"), emptyNote("No run is chosen. Choose runs in ", make("a", { href: "#/" }, "the table"), "."));
    return () => {};
  }
  const used = new Map(await Promise.all(runs.map(async (id) => [id, await ask(`${pathOf(id)}/totals`).catch(noneIfRemoved)])));
  const ofUse = Object.entries(USED).map(([key, text]) => ({ key, kind: "use", text: (row) => (used.get(row.run_id) ? text(used.get(row.run_id)) : "-") }));

  function draw() {
    const columns = [...[...OWN, ...new Columns(rows).facts].map(column), ...ofUse].filter((each) => {
      const texts = new Set(rows.map((row) => textOf(each, row)));
      return all || texts.size > 1 || each.key === "state";
    });
    const heads = rows.map((row) => make("th", { scope: "col" }, runLink(row.run_id)));
    const lines = columns.map((each) => make("tr", {}, make("th", { scope: "row" }, each.kind === "run" ? each.title : each.key),
      rows.map((row) => make("td", {}, each.key === "state" ? stateBadge(row.state) : textOf(each, row)))));
    fill(place, wide(make("table", { class: "compare" }, make("caption", { class: "hidden" }, "Runs side by side"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Column"), heads)), make("tbody", {}, lines)), "Runs side by side"));
  }

  const panel = await curvesPanel(runs, "", { query, place: addressOf("compare", runs) });
  fill(main, make("h1", {}, `Compare ${rows.length} runs`), select("Show", [["", "what differs"], ["all", "all columns"]], "", (value) => { all = value === "all"; draw(); }), place, make("div", { class: "curves" }, panel.element),
    rows.length === 2 ? section("Code", make("p", {}, make("a", { href: addressOfDiff(...runs) }, "What changed in the job, the code and the versions"))) : null);
  draw();
  return () => panel.close();
}

// A run may be removed while the page is open.
function noneIfRemoved(error) {
  if (error.status !== 404) throw error;
  return null;
}
