// A run's outputs and checkpoints: folders to open, and a file's contents as text, table, picture or sound.
import { button, emptyNote, fill, make, section, table } from "./dom.js";
import { bytes, clock, number } from "./format.js";
import { ask, askBytes, exported } from "./source.js";

const PART = 256 << 10; // bytes of a text at a time
const LARGEST = 32 << 20; // bytes of a picture or a sound
const MOST_JSON = 1 << 20;
const MOST_ROWS = 500;
const MOST_CELLS = 20_000;
// The types of files that the page shows, by the end of the name. None of them lets a browser run a file's contents.
const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", bmp: "image/bmp", svg: "image/svg+xml" };
const SOUNDS = { wav: "audio/wav", mp3: "audio/mpeg", ogg: "audio/ogg", flac: "audio/flac" };

export async function filesTab(place, { path, run }) {
  const list = make("div", { class: "files" });
  const view = make("div", { class: "viewer" });
  let closing = () => {};

  async function open(file) {
    closing();
    fill(view, make("p", { role: "status" }, `Reading ${file.path} …`));
    try {
      const shown = await viewOf(`${path}/content`, file);
      closing = shown.close ?? (() => {});
      fill(view, make("h3", {}, file.path), make("p", { class: "muted small" }, bytes(file.bytes)), shown.element);
    } catch (error) {
      fill(view, make("h3", {}, file.path), make("p", { role: "alert" }, error.message), error.hint ? make("p", {}, error.hint) : null);
    }
  }

  async function draw() {
    const found = await ask(`${path}/files`);
    const wasOpen = new Set([...list.querySelectorAll("details[open]")].map((each) => each.dataset.folder));
    const outputs = treeOf(found.outputs.map((each) => ({ ...each, query: { path: each.path } })), open, wasOpen, "");
    fill(list, found.problems.map((each) => make("p", { class: "problem", role: "alert" }, each)),
      section("Outputs", found.outputs.length ? outputs : emptyNote(run().final ? "This run has left no files: what a program writes to its working folder or to $ORCH_OUTPUT_DIR is listed here."
        : "No files yet: what the program writes to its working folder or to $ORCH_OUTPUT_DIR is listed here."),
      found.outputs_left ? make("p", {}, `and ${number(found.outputs_left)} more: orch outputs lists all`) : null),
      section("Checkpoints", found.checkpoints.length ? found.checkpoints.map((each) => checkpoint(each, open, wasOpen))
        : emptyNote(run().final ? "This run has left no checkpoint: those of" : "No checkpoint yet: those of", " orchestrator.training, Lightning, Trainer, DeepSpeed and torch.save are found by themselves.")));
  }

  fill(place, make("div", { class: "browser" }, list, view));
  fill(view, emptyNote("Choose a file to see its contents: text, JSON, CSV, pictures and sounds."));
  await draw();
  return { refresh: async (changed) => { if (changed.includes("state")) await draw(); }, close: () => closing() };
}

function checkpoint(each, open, wasOpen) {
  const metric = Object.entries(each.metric).map(([key, value]) => `${key} ${number(value)}`).join(", ");
  const facts = [each.verdict, each.step === null ? null : `step ${number(each.step)}`, metric, bytes(each.bytes), each.time ? clock(each.time) : null].filter(Boolean).join(" · ");
  const entries = each.entries.map((entry) => ({ ...entry, query: { checkpoint: each.name, path: entry.path } }));
  const id = `checkpoint ${each.name}`;
  return make("details", { "data-folder": id, open: wasOpen.has(id) }, make("summary", {}, each.name, each.best ? make("strong", {}, " best") : null, make("span", { class: "muted small" }, ` ${facts}`)),
    each.best ? make("p", { class: "muted small" }, each.best) : null, each.reason ? make("p", { class: "problem" }, each.reason) : null, treeOf(entries, open, wasOpen, id));
}

// Shows folders as details, and files as buttons. A folder of many files is closed at first.
function treeOf(files, open, wasOpen, above) {
  const folders = new Map();
  const here = [];
  for (const file of files) {
    const rest = (file.rest ?? file.path).split("/");
    if (rest.length === 1) here.push(make("li", {}, button(rest[0], () => open(file), { class: "file" }), make("span", { class: "muted small" }, ` ${bytes(file.bytes)}${file.node ? `, node ${file.node}` : ""}`)));
    else folders.set(rest[0], [...(folders.get(rest[0]) ?? []), { ...file, rest: rest.slice(1).join("/") }]);
  }
  const inner = [...folders].map(([name, inside]) => {
    const id = `${above}/${name}`;
    return make("li", {}, make("details", { "data-folder": id, open: wasOpen.has(id) || inside.length <= 10 }, make("summary", {}, `${name}/ `, make("span", { class: "muted small" }, `${number(inside.length)} files, ${bytes(inside.reduce((sum, each) => sum + each.bytes, 0))}`)), treeOf(inside, open, wasOpen, id)));
  });
  return make("ul", { class: "tree" }, inner, here);
}

// -- one file

async function viewOf(where, file) {
  const kind = file.path.split(".").at(-1).toLowerCase();
  if (file.path.includes("tfevents")) return { element: emptyNote("The scalars of this TensorBoard event file are curves of the run. orch pull copies the file, and TensorBoard shows its pictures and texts.") };
  if (kind in PICTURES) return media(where, file, PICTURES[kind], (address) => make("img", { src: address, alt: file.path }));
  if (kind in SOUNDS) return media(where, file, SOUNDS[kind], (address) => make("audio", { src: address, controls: true }));
  const { data, size } = await askBytes(where, { ...file.query, count: PART });
  if (isBinary(data)) return { element: emptyNote(`This file is not text (${bytes(size)}): orch pull copies it.`) };
  if (["csv", "tsv"].includes(kind)) return { element: tableOf(text(data), kind === "csv" ? "," : "\t", size > data.byteLength) };
  if (kind === "json" && size <= MOST_JSON) return { element: pretty(text(size > PART ? (await askBytes(where, { ...file.query, count: MOST_JSON })).data : data)) };
  return { element: pieces(where, file, data, size) };
}

async function media(where, file, type, makeElement) {
  if (exported) return { element: emptyNote("Pictures and sounds are not exported, because nothing can be taken out of them.") };
  if (file.bytes > LARGEST) return { element: emptyNote(`The page shows pictures and sounds of at most ${bytes(LARGEST)}: orch pull copies this one.`) };
  const { data } = await askBytes(where, file.query);
  const address = URL.createObjectURL(new Blob([data], { type }));
  return { element: make("div", { class: "media" }, makeElement(address)), close: () => URL.revokeObjectURL(address) };
}

function text(data) {
  return new TextDecoder().decode(data);
}

function isBinary(data) {
  return new Uint8Array(data.slice(0, 8192)).includes(0);
}

function plain(words) {
  return make("pre", { tabindex: "0", role: "region", "aria-label": "Contents", class: "log" }, words);
}

function pretty(words) {
  try {
    return plain(JSON.stringify(JSON.parse(words), null, 2));
  } catch {
    return plain(words); // it is no JSON, so it is shown as text
  }
}

function pieces(where, file, data, size) {
  const shown = plain(text(data));
  const decoder = new TextDecoder();
  shown.textContent = decoder.decode(data, { stream: true });
  let end = data.byteLength;
  const said = make("span", { role: "status" });
  const more = button("Show more", async () => {
    const next = await askBytes(where, { ...file.query, offset: end, count: PART });
    end += next.data.byteLength;
    shown.append(decoder.decode(next.data, { stream: true }));
    tell();
  });
  function tell() {
    more.hidden = end >= size;
    said.textContent = end >= size ? "" : `${bytes(end)} of ${bytes(size)}`;
  }
  tell();
  return make("div", {}, shown, make("div", { class: "tools" }, more, said));
}

// Exported for its test.
export function tableOf(words, comma, isCut) {
  const rows = rowsOf(words, comma);
  if (isCut) rows.pop(); // the last row may be a part of a row
  const [heads = [], ...rest] = rows;
  const columns = rows.reduce((most, row) => Math.max(most, row.length), 1);
  const wide = Math.min(columns, MOST_CELLS / 20);
  const shown = rest.slice(0, Math.min(MOST_ROWS, Math.floor(MOST_CELLS / wide)));
  const name = `${number(shown.length)} ${rest.length > shown.length || isCut ? "first " : ""}rows${wide < columns ? ` and ${number(wide)} of ${number(columns)} columns: orch pull copies the whole file` : ""}`;
  return make("div", {}, table(name, heads.slice(0, wide), shown.map((row) => row.slice(0, wide))));
}

// Rows of cells (RFC 4180): a cell in quotes may have commas, lines, and quotes twice.
function rowsOf(words, comma) {
  const rows = [];
  let row = [];
  let cell = "";
  let isQuoted = false;
  for (let at = 0; at < words.length; at += 1) {
    const char = words[at];
    if (isQuoted) {
      if (char !== '"') cell += char;
      else if (words[at + 1] === '"') { cell += '"'; at += 1; } else isQuoted = false;
    } else if (char === '"' && cell === "") isQuoted = true;
    else if (char === comma) { row.push(cell); cell = ""; } else if (char === "\n") { row.push(cell.replace(/\r$/, "")); rows.push(row); row = []; cell = ""; } else cell += char;
  }
  if (cell || row.length) rows.push([...row, cell]);
  return rows;
}
