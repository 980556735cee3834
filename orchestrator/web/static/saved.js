// Saved views: the query of an address gets a name, which the state folder keeps. Both the table of runs and the panels of curves have views.
import { button, fill, make, openDialog, select } from "./dom.js";
import { ask, exported, post, wordsOf } from "./source.js";

const NOT_SAVED = "*"; // the choice that stands for the address as it is

// `kind` is runs or curves, `usual` names the view without choices, and `about` explains in the dialog what is saved.
// `present` returns the query as it is now, and `open` shows another one. `offered` is the name in the dialog at first.
export function savedViews(kind, { usual, about, offered = "", present, open }) {
  const element = make("span", { class: "tools" });
  if (exported) return { element, draw: () => {}, ready: Promise.resolve({}) };
  const path = `/api/views/${kind}`;
  const choice = make("span");
  const said = make("span", { role: "alert", class: "problem" });
  const remove = button("✕", () => keep(nameOfPresent(), null), { "aria-label": "Remove view", title: "Remove view" });
  let views = {};

  function nameOfPresent() {
    return Object.keys(views).sort().find((name) => views[name] === present()) ?? "";
  }

  function draw() {
    const names = Object.keys(views).sort();
    const now = nameOfPresent() || (present() ? NOT_SAVED : "");
    const options = [["", usual], ...(now === NOT_SAVED ? [[NOT_SAVED, "not saved"]] : []), ...names];
    fill(choice, names.length ? select("View", options, now, (name) => { if (name !== NOT_SAVED) open(views[name] ?? ""); }) : null);
    remove.hidden = !nameOfPresent();
  }

  function take(found) {
    views = found;
    draw();
    return found;
  }

  async function keep(name, query) {
    try {
      take(await post(path, { name, query }));
      fill(said);
    } catch (error) {
      fill(said, wordsOf(error));
    }
  }

  function save() {
    const name = make("input", { type: "text", required: true, maxlength: 60, autocomplete: "off", value: offered });
    const dialog = openDialog("Save view", [make("form", { onsubmit: (event) => {
      event.preventDefault();
      keep(name.value.trim(), present());
      dialog.close();
    } }, make("h2", {}, "Save view"), make("p", {}, about), make("label", {}, "Name ", name),
    make("div", { class: "tools" }, make("button", { type: "submit" }, "Save"), button("Cancel", () => dialog.close())))]);
  }

  fill(element, choice, button("Save view …", save), remove, said);
  draw();
  const ready = ask(path).then(take, (error) => { fill(said, error.message); return views; });
  return { element, draw, ready };
}
