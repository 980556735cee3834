// A run's tags and its note: the button that opens their dialog.
import { button, fill, make, openDialog } from "./dom.js";
import { pathOf, post, wordsOf } from "./source.js";

// `labels` returns the labels as they are; `changed` receives those that the user has saved.
export function labelsButton(run, labels, changed) {
  return button("✎", () => edit(run, labels(), changed), { class: "edit", "data-key": `edit:${run}`, "aria-label": `tags and note of ${run}`, title: labels().note || "Tags and note" });
}

function edit(run, labels, changed) {
  const tags = make("input", { type: "text", value: labels.tags.join(" "), autocomplete: "off", "aria-describedby": "tags-help" });
  const note = make("textarea", { rows: 5, value: labels.note });
  const said = make("p", { role: "alert", class: "problem" });
  const save = async (event) => {
    event.preventDefault();
    const words = tags.value.split(/[\s,]+/).filter(Boolean);
    const changes = { add: words.filter((each) => !labels.tags.includes(each)), remove: labels.tags.filter((each) => !words.includes(each)) };
    try {
      changed(await post(`${pathOf(run)}/labels`, note.value === labels.note ? changes : { ...changes, note: note.value }));
      dialog.close();
    } catch (error) {
      fill(said, wordsOf(error));
    }
  };
  const dialog = openDialog(`Tags and note of ${run}`, make("form", { onsubmit: save }, make("h2", {}, run),
    make("label", {}, "Tags", tags), make("p", { class: "small muted", id: "tags-help" }, "Words, with blanks between them. The filter finds them by tag:WORD."),
    make("label", {}, "Note", note), said, make("div", { class: "tools" }, make("button", { type: "submit" }, "Save"), button("Cancel", () => dialog.close()))), "labels");
}
