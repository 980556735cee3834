// Makes elements. Text from runs is set as text, and never parsed as HTML.

export function make(name, attributes = {}, ...children) {
  return complete(document.createElement(name), attributes, children);
}

// Makes an element of a drawing.
export function svg(name, attributes = {}, ...children) {
  return complete(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function complete(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...nodesOf(children));
  return element;
}

// The sentence of an empty view: it says why the view is empty and what fills it.
export function emptyNote(...children) {
  return make("p", { class: "empty" }, ...children);
}

// Strings become text by themselves.
function nodesOf(children) {
  return children.flat().filter((child) => child !== null && child !== undefined);
}

export function fill(element, ...children) {
  element.replaceChildren(...nodesOf(children));
  return element;
}

export function table(caption, heads, rows) {
  const head = make("tr", {}, heads.map((each) => make("th", { scope: "col" }, each)));
  const body = make("tbody", {}, rows.map((cells) => make("tr", {}, cells.map((cell) => make("td", {}, cell)))));
  return wide(make("table", {}, make("caption", {}, caption), make("thead", {}, head), body), caption);
}

// A region that scrolls on a narrow screen, by keyboard too.
export function wide(element, label) {
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, element);
}

export function section(title, ...children) {
  const id = `section-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return make("section", { "aria-labelledby": id }, make("h2", { id }, title), ...children);
}

export function select(label, options, value, onchange) {
  const choices = options.map((each) => {
    const [key, text] = Array.isArray(each) ? each : [each, each];
    return make("option", { value: key }, text);
  });
  const control = make("select", { onchange: () => onchange(control.value) }, choices);
  control.value = value;
  return make("label", {}, `${label} `, control);
}

export function button(text, onclick, attributes = {}) {
  return make("button", { type: "button", onclick, ...attributes }, text);
}

// A button that opens a box below it; Escape, or a click elsewhere, closes it.
export function menu(summary, ...children) {
  const element = make("details", { class: "menu" }, summary, make("div", { class: "choices" }, ...children));
  const leave = (event) => {
    if (event.type === "keydown" ? event.key !== "Escape" : element.contains(event.target)) return;
    element.open = false;
    if (event.type === "keydown") summary.focus();
  };
  element.addEventListener("toggle", () => {
    for (const each of ["pointerdown", "keydown"]) document[element.open ? "addEventListener" : "removeEventListener"](each, leave);
  });
  return element;
}

// Opens a dialog. It is removed when it closes, and `closed` is called then.
export function openDialog(label, children, kind = null, closed = () => {}) {
  const dialog = make("dialog", { "aria-label": label, class: kind, onclose: () => { dialog.remove(); closed(); } }, ...[children].flat());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// The addresses of the page: of one run, and of a view of several.
export function addressOfRun(id, tab = "") {
  return `#/run/${encodeURIComponent(id)}${tab && `/${tab}`}`;
}

export function addressOf(view, runs) {
  return `#/${view}?${new URLSearchParams(runs.map((run) => ["run", run]))}`;
}

export function addressOfDiff(one, other) {
  return `#/diff/${encodeURIComponent(one)}/${encodeURIComponent(other)}`;
}

export function runLink(id, words = id) {
  return make("a", { href: addressOfRun(id) }, words);
}

export function sweepLink(sweep, words = sweep, attributes = {}) {
  return make("a", { href: `#/sweep/${encodeURIComponent(sweep)}`, ...attributes }, words);
}

export function stateBadge(state) {
  return make("span", { class: `state ${state}` }, state);
}
