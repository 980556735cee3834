// The saved views of the table of runs: a name for a filter, an order, groups and columns.
import { button, fill, make, select } from "./dom.js";
import { ask, exported, post } from "./source.js";

// `present` returns the address of the table as it is.
export function savedViews(present, onlink) {
  const element = make("span", { class: "tools" });
  if (exported) return { element, draw: () => {} };
  let views = {};

  function draw() {
    const names = Object.keys(views).sort();
    const now = names.find((name) => views[name] === present()) ?? "";
    fill(element, names.length ? select("View", [["", "all runs"], ...names], now, (name) => { location.hash = `#/${views[name] ?? ""}`; }) : null,
      button("Save view …", save), now ? button("Remove view", () => keep(now, null)) : null);
  }

  async function keep(name, query) {
    try {
      views = await post("/api/views", { name, query });
      draw();
    } catch (error) {
      onlink([error.message, error.hint].filter(Boolean).join("; "));
    }
  }

  function save() {
    const name = make("input", { type: "text", required: true, maxlength: 60, autocomplete: "off" });
    const dialog = make("dialog", { "aria-label": "Save view", onclose: () => dialog.remove() }, make("form", { onsubmit: (event) => {
      event.preventDefault();
      keep(name.value.trim(), present());
      dialog.close();
    } }, make("h2", {}, "Save view"), make("p", {}, "The filter, order, groups and columns of the table get a name."), make("label", {}, "Name ", name),
    make("div", { class: "tools" }, make("button", { type: "submit" }, "Save"), button("Cancel", () => dialog.close()))));
    document.body.append(dialog);
    dialog.showModal();
  }

  draw();
  ask("/api/views").then((found) => { views = found; draw(); }, (error) => onlink(error.message));
  return { element, draw };
}
