// Several runs side by side: the columns in which they differ, and their curves.
import { Columns, column, textOf } from "./columns.js";
import { curvesPanel } from "./curves.js";
import { addressOf, addressOfDiff, emptyNote, fill, make, runLink, section, select, stateBadge, wide } from "./dom.js";
import { ask } from "./source.js";

const OWN = ["state", "profile", "ranks", "submitted", "took", "restarts", "tag", "note", "reason"];

export async function showCompare(main, _words, query) {
  const wanted = query.getAll("run");
  const known = new Map((await ask("/api/runs")).map((row) => [row.run_id, row]));
  const rows = wanted.map((id) => known.get(id)).filter(Boolean);
  const place = make("div");
  let all = false;

  function draw() {
    const columns = [...OWN, ...new Columns(rows).facts].map(column).filter((each) => {
      const texts = new Set(rows.map((row) => textOf(each, row)));
      return all || texts.size > 1 || each.key === "state";
    });
    const heads = rows.map((row) => make("th", { scope: "col" }, runLink(row.run_id)));
    const lines = columns.map((each) => make("tr", {}, make("th", { scope: "row" }, each.kind === "run" ? each.title : each.key),
      rows.map((row) => make("td", {}, each.key === "state" ? stateBadge(row.state) : textOf(each, row)))));
    fill(place, wide(make("table", { class: "compare" }, make("caption", { class: "hidden" }, "Runs side by side"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Column"), heads)), make("tbody", {}, lines)), "Runs side by side"));
  }

  if (!rows.length) {
    fill(main, make("h1", {}, "Compare"), emptyNote("No run is chosen. Choose runs in ", make("a", { href: "#/" }, "the table"), "."));
    return () => {};
  }
  const runs = rows.map((row) => row.run_id);
  const panel = await curvesPanel(runs, "", { query, place: addressOf("compare", runs) });
  fill(main, make("h1", {}, `Compare ${rows.length} runs`), select("Show", [["", "what differs"], ["all", "all columns"]], "", (value) => { all = value === "all"; draw(); }), place, make("div", { class: "curves" }, panel.element),
    rows.length === 2 ? section("Code", make("p", {}, make("a", { href: addressOfDiff(...runs) }, "What changed in the job, the code and the versions"))) : null);
  draw();
  return () => panel.close();
}
