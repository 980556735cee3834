// Requests the page's data from the server, with the session's token, or takes it from the file of an exported page.

const HEADER = "X-Orch-Session";
const AGAIN_MS = 2000; // until a new connection, after one was cut

export const exported = globalThis.orchExport ?? null;

export class Refused extends Error {
  constructor(message, hint, status) {
    super(message);
    this.hint = hint;
    this.status = status;
  }
}

export function wordsOf(error) {
  return [error.message, error.hint].filter(Boolean).join("; ");
}

export function ask(path, query = {}) {
  if (exported) return fromExport(path, query);
  return sent(address(path, query), { headers: headers() });
}

export function pathOf(run) {
  return `/api/runs/${encodeURIComponent(run)}`;
}

// Returns {data, size}: a part of a file as an ArrayBuffer, and the size of the whole file.
export async function askBytes(path, query) {
  if (exported) {
    const { text } = await fromExport(path, { path: query.path });
    const data = new TextEncoder().encode(text).buffer;
    return { data, size: data.byteLength };
  }
  const answer = await answered(address(path, query), { headers: headers() });
  return { data: await answer.arrayBuffer(), size: Number(answer.headers.get("x-orch-size")) };
}

export function post(path, body = {}) {
  return sent(path, { method: "POST", headers: headers(), body: JSON.stringify(body) });
}

function address(path, query) {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const each of [value].flat()) if (each !== null && each !== undefined && each !== "") words.append(key, each);
  }
  const text = words.toString();
  return text ? `${path}?${text}` : path;
}

function headers() {
  return { [HEADER]: localStorage.getItem("orch-session") ?? "" };
}

async function sent(where, options) {
  return (await answered(where, options)).json();
}

async function answered(where, options) {
  const answer = await fetch(where, options);
  if (answer.ok) return answer;
  const text = await answer.text();
  let said = { error: text.trim(), hint: "" };
  try {
    said = JSON.parse(text);
  } catch {
    // the gate answers with plain text
  }
  throw new Refused(said.error, said.hint, answer.status);
}

async function fromExport(path, query) {
  if (path === "/api/curves") return curvesFromExport(path, query);
  const found = exported[address(path, query)] ?? exported[path];
  if (found === undefined) throw new Refused("this is not among the exported pages", "", 404);
  return found;
}

// An export has the curves of each run alone. Those of several runs are put together here.
function curvesFromExport(path, { run, metric }) {
  const answers = (name) => [run].flat().map((each) => exported[address(path, { run: each, metric: name })]).filter(Boolean);
  const all = answers("loss"); // each run has this answer, with the names of all its metrics
  const [names, kinds] = ["names", "kinds"].map((key) => [...new Set(all.flatMap((each) => each[key]))]);
  const curves = answers(metric).flatMap((each) => each.panels).flatMap((panel) => panel.curves);
  return { panels: [{ metric, curves }], names, kinds, hint: names.length ? "" : all[0]?.hint ?? "" };
}

// Calls `tell` with each message of the server's stream, until the returned function is called. It reconnects by itself.
// `seen` are the signatures of the files that the page of a run has already read.
export function follow(run, tell, onlink = () => {}, seen = {}) {
  if (exported) return () => {};
  const end = new AbortController();
  const where = address("/api/events", run ? { run, ...seen } : {});
  const loop = async () => {
    while (!end.signal.aborted) {
      try {
        await read(where, end.signal, tell, onlink);
      } catch (error) {
        if (end.signal.aborted) return;
        if (error instanceof Refused && error.status < 500) return onlink(error.message);
      }
      if (end.signal.aborted) return;
      onlink("The server does not answer. This is the data that it sent last.");
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  };
  loop();
  return () => end.abort();
}

const SHARE = 140; // repeated requests of a page take at most 1/SHARE of the time, because a large run on three pages must not keep the server busy
const LONGEST = 10000; // ms

// Returns a function that does the work: at once, but at most once in so many ms, one at a time, and not while the page is hidden.
// If the work returns a number of ms, its next turn waits at least so long.
export function paced(least, work) {
  let last = -Infinity;
  let ms = least;
  let waiting = null;
  let busy = Promise.resolve();
  const turn = async () => {
    await new Promise((resolve) => { setTimeout(resolve, Math.max(0, last + ms - performance.now())); });
    if (document.hidden) await new Promise((resolve) => { document.addEventListener("visibilitychange", resolve, { once: true }); });
    waiting = null;
    last = performance.now();
    busy = busy.catch(() => {}).then(work); // the caller of that turn reports the failure
    const wanted = await busy;
    ms = Math.max(least, Number.isFinite(wanted) ? wanted : 0, Math.min(LONGEST, SHARE * (performance.now() - last)));
    return busy;
  };
  return () => (waiting ??= turn());
}

async function read(where, signal, tell, onlink) {
  const answer = await fetch(where, { headers: headers(), signal });
  if (!answer.ok) throw new Refused((await answer.text()).trim(), "", answer.status);
  onlink("");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const message = JSON.parse(event.slice(6));
      if (message.problem === undefined) tell(message);
      else onlink(message.problem);
    }
  }
}
