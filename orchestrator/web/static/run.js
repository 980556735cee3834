// One run: how it stands and why it ended, its time, its curves, its ranks, its logs, its files; and what can be done.
import { button, fill, make, runLink, section, stateBadge, table } from "./dom.js";
import { curvesPanel } from "./curves.js";
import { ago, bytes, clock, duration, number, took } from "./format.js";
import { stepTimesPanel, usePanel } from "./heat.js";
import { logPanel } from "./logs.js";
import { ask, exported, follow, post } from "./source.js";

export async function showRun(main, [name], _query, onlink) {
  const path = `/api/runs/${encodeURIComponent(name)}`;
  let run = await ask(path);
  const top = make("div");
  const reason = make("div");
  const result = make("div");
  const time = make("div");
  const ranks = make("div");
  const files = make("div");
  const [curvesPlace, logPlace, usePlace, heatPlace] = ["tall", "tall", "", ""].map((kind) => make("div", { class: kind }));
  let curves = null;
  let use = null;
  let heat = null;
  let log = null;

  const does = actions(name);

  function draw() {
    fill(top, head(run, name));
    does.cancel.hidden = run.final;
    fill(reason, why(run));
    fill(result, run.result ? section("Result", facts(run.result)) : null);
    fill(time, timeline(run));
    fill(ranks, rankTable(run));
  }

  async function drawFiles() {
    fill(files, filesOf(await ask(`${path}/files`)), aboutOf(run));
  }

  // The panels come when they are there; nobody waits for them to read the rest.
  async function drawPanels() {
    const parts = [
      curvesPanel([name], run.metric ?? "").then((made) => { curves = made; fill(curvesPlace, made.element); }),
      usePanel(name).then((made) => { use = made; fill(usePlace, made.element); }),
      stepTimesPanel(name).then((made) => { heat = made; fill(heatPlace, made.element); }),
      logPanel(name, run.logs, blamed(run)).then((made) => { log = made; fill(logPlace, made.element); made.shown(); }),
      drawFiles(),
    ];
    for (const each of await Promise.allSettled(parts)) if (each.status === "rejected") onlink(each.reason.message);
  }

  async function take({ changed }) {
    const hadLogs = run.logs.length;
    if (changed.includes("state") || changed.includes("beats")) {
      run = await ask(path);
      draw();
    }
    if (changed.includes("state")) await drawFiles();
    if (changed.includes("metrics")) await curves?.refresh();
    if (changed.includes("beats")) await heat?.refresh();
    if (changed.includes("use")) await use?.refresh();
    if (run.logs.length !== hadLogs || (changed.includes("logs") && !run.logs.length)) {
      run = await ask(path);
      log?.close();
      log = await logPanel(name, run.logs);
      fill(logPlace, log.element);
      log.shown();
    } else if (changed.includes("logs")) await log?.refresh();
  }

  fill(main, top, exported ? null : does.element, reason, curvesPlace, result, time, logPlace, ranks, usePlace, heatPlace, files);
  draw();
  const panels = drawPanels();
  let work = panels; // one message after the other
  const queue = (message) => { work = work.then(() => take(message)).catch((error) => onlink(error.message)); };
  const stop = follow(name, queue, onlink, run.seen);
  return () => { stop(); panels.then(() => { curves?.close(); use?.close(); heat?.close(); log?.close(); }); };
}

function blamed(run) {
  const { verdict, logs } = run;
  if (!verdict || verdict.rank === null || verdict.outcome !== "failed") return null;
  return logs.find((each) => each[0] === verdict.attempt && each[1] === verdict.rank) ?? null;
}

function head(run, name) {
  const { row, progress } = run;
  const facts = [["Profile", row.profile], ["Ranks", row.world_size ?? "?"], ["Submitted", `${ago(row.created)} (${clock(row.created)})`],
    ["Took", took(row)], ["Restarts", row.restarts], ["Folder", run.folder]];
  if (run.job) facts.push(["job", run.job]);
  if (run.repeats) facts.push(["Repeats", runLink(run.repeats)]);
  if (run.sweep) facts.push(["Sweep", make("a", { href: `#/sweep/${encodeURIComponent(run.sweep)}` }, run.sweep)]);
  for (const [key, value] of Object.entries(run.values)) facts.push([key, value]);
  const bar = progress && progress.total ? make("progress", { max: progress.total, value: progress.step, "aria-label": "Steps done" }) : null;
  return [make("h1", {}, name, " ", stateBadge(row.state)), make("p", { class: "note", role: "status" }, row.note), problemsOf(run), bar,
    make("dl", { class: "facts" }, facts.map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, value))))];
}

function problemsOf({ problems }) {
  return problems.map((each) => make("p", { class: "problem", role: "alert" }, each));
}

// What outlives each drawing of the rest: the sentence that says how it went, and the keyboard's place.
function actions(name) {
  const said = make("span", { role: "status" });
  const path = `/api/runs/${encodeURIComponent(name)}`;
  const act = async (what, body, element) => {
    element.disabled = true;
    fill(said, `${what} …`);
    try {
      const done = await post(`${path}/${what}`, body);
      fill(said, done.said, " ", done.id ? runLink(done.id) : "");
    } catch (error) {
      fill(said, make("span", { role: "alert" }, [error.message, error.hint].filter(Boolean).join("; ")));
    }
    element.disabled = false;
  };
  const cancel = button("Cancel", () => confirmed(`Cancel ${name}?`, null, () => act("cancel", {}, cancel)), { class: "danger" });
  const repeat = button("Repeat", () => confirmed(`Submit ${name} once more?`, null, () => act("repeat", {}, repeat)));
  const pull = button("Pull", () => confirmed("Copy its logs, results, outputs and newest checkpoint to a folder of the server's machine",
    `~/orch/${name}`, (to) => act("pull", { to }, pull)));
  return { element: make("div", { class: "tools" }, cancel, repeat, pull, said), cancel };
}

function confirmed(question, value, go) {
  const input = value === null ? null : make("input", { type: "text", value, "aria-label": "Folder", size: "40" });
  const dialog = make("dialog", { "aria-label": question, onclose: () => dialog.remove() }, make("p", {}, question), input,
    make("div", { class: "tools" }, button("Yes", () => { dialog.close(); go(input?.value); }), button("No", () => dialog.close(), { autofocus: true })));
  document.body.append(dialog);
  dialog.showModal();
}

function why(run) {
  const { verdict } = run;
  if (!verdict) return null;
  const who = verdict.rank === null ? verdict.host : `rank ${verdict.rank} on ${verdict.host}, attempt ${verdict.attempt}`;
  const trace = verdict.error?.traceback ?? verdict.tail.join("\n");
  if (verdict.outcome === "succeeded") return null;
  return section("Why", make("p", {}, make("strong", {}, verdict.reason || verdict.outcome), who ? ` (${who})` : ""),
    verdict.hint ? make("p", {}, verdict.hint) : null,
    trace ? make("pre", { class: "trace", tabindex: "0", role: "region", "aria-label": "Traceback" }, trace) : null);
}

function facts(values) {
  return make("dl", { class: "facts" }, Object.entries(values).map(([key, value]) =>
    make("div", {}, make("dt", {}, key), make("dd", {}, typeof value === "object" ? JSON.stringify(value) : number(value)))));
}

function timeline(run) {
  const { start, end, spans } = run.timeline;
  const whole = Math.max(end - start, 0.001);
  const rows = spans.map((span) => {
    const until = span.end ?? end;
    const bar = make("span", { class: `span ${span.kind}` });
    bar.style.left = `${(100 * (span.start - start)) / whole}%`;
    bar.style.width = `${Math.max(0.3, (100 * (until - span.start)) / whole)}%`;
    const words = [duration(until - span.start), span.note].filter(Boolean).join(", ");
    return make("li", {}, make("span", { class: "name" }, span.name), make("span", { class: "track", "aria-hidden": "true" }, bar), make("span", { class: "words" }, words));
  });
  return section("Time", make("ol", { class: "timeline" }, rows));
}

function rankTable(run) {
  if (!run.ranks.length) return null;
  const rows = run.ranks.map((each) => [each.rank, each.host, stateBadge(each.state), each.end || "-", number(each.step),
    each.step_time === null ? "-" : duration(each.step_time), each.phase || "-", number(each.loss)]);
  return section("Ranks", table("Ranks, those with trouble first, then the slowest", ["Rank", "Host", "State", "End", "Step", "A step takes", "Phase", "Loss"], rows),
    run.ranks_left ? make("p", {}, `and ${run.ranks_left} more`) : null);
}

function filesOf(found) {
  const checkpoints = found.checkpoints.map((each) => [each.name, each.verdict, number(each.step),
    Object.entries(each.metric).map(([key, value]) => `${key} ${number(value)}`).join(", ") || "-", bytes(each.bytes), clock(each.time), each.best || ""]);
  const outputs = found.outputs.map((each) => [each.path, bytes(each.bytes), each.node]);
  return [
    ...problemsOf(found), section("Checkpoints", checkpoints.length ? table("Checkpoints", ["Name", "State", "Step", "Metric", "Size", "Saved", "Best"], checkpoints) : make("p", {}, "none here")),
    section("Outputs", outputs.length ? table("Outputs", ["File", "Size", "Node"], outputs) : make("p", {}, "none here"),
      found.outputs_left ? make("p", {}, `and ${found.outputs_left} more`) : null)];
}

function aboutOf(run) {
  const hours = Object.entries(run.hours).map(([key, value]) => `${number(value)} ${key.replace("_", "-")}`).join(", ");
  const compare = make("input", { type: "text", placeholder: "another run", "aria-label": "Another run" });
  const go = (event) => { event.preventDefault(); location.hash = `#/diff/${encodeURIComponent(compare.value)}/${encodeURIComponent(run.row.run_id)}`; };
  return section("Job", make("p", {}, hours), exported ? null : make("form", { class: "tools", onsubmit: go }, make("label", {}, "Diff to ", compare), make("button", {}, "Show")),
    make("details", {}, make("summary", {}, "The job as it was submitted"), make("pre", { tabindex: "0" }, JSON.stringify(run.job, null, 1))));
}
