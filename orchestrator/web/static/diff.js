// The differences between two runs.
import { addressOf, fill, make, runLink, section, table } from "./dom.js";
import { ask } from "./source.js";

export async function showDiff(main, [one, other]) {
  const found = await ask("/api/diff", { one, other });
  const rows = found.rows.map((row) => [row.section, row.what, row.one, row.other]);
  const files = found.files.map((file) => make("details", { open: found.files.length < 5 }, make("summary", {}, `${file.path} (${file.change})`),
    make("pre", { tabindex: "0" }, file.diff.map((text) => make("div", { class: { "+": "added", "-": "removed" }[text[0]] }, text || " ")))));
  fill(main, make("h1", {}, "Diff"), make("p", {}, "From ", runLink(found.one), " to ", runLink(found.other), ". ",
    make("a", { href: addressOf("curves", [found.one, found.other]) }, "Curves of both")),
    rows.length ? table("What differs", ["Of", "What", found.one, found.other], rows) : make("p", {}, "Nothing else differs."),
    files.length ? section("Code", files) : null);
  return () => {};
}
