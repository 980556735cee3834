// One run: a header that stays visible, with its tiles and actions, and a tab for each subject; each tab has its address.
import { addressOfDiff, addressOfRun, button, emptyNote, fill, make, openDialog, runLink, section, stateBadge, sweepLink, table } from "./dom.js";
import { curvesPanel } from "./curves.js";
import { filesTab } from "./files.js";
import { ago, clock, duration, isFinal, number, timeOfDay, took } from "./format.js";
import { labelsButton } from "./labels.js";
import { logPanel } from "./logs.js";
import { ranksTab, tellPace } from "./ranks.js";
import { ask, exported, follow, paced, pathOf, post, wordsOf } from "./source.js";
import { systemTab } from "./system.js";
import { drawTrend } from "./trend.js";

const TABS = { overview: overviewTab, curves: curvesTab, ranks: ranksTab, system: systemTab, logs: logsTab, files: filesTab, config: configTab, why: whyTab };
const CAUSES = { user_error: "the program or its settings: another start would fail too", infra: "the machines or the network" };
const AGAIN = 1000; // ms between two requests, even if the run changes all the time

export async function showRun(main, [name, asked], query, onlink) {
  const path = pathOf(name);
  let run = await ask(path, { first: 1 });
  let tab = null; // the open tab: {name, refresh, close}
  let turn = 0;
  let heard = Date.now();
  const head = make("div", { class: "run-head" });
  const live = make("span", { class: "live", role: "status" });
  const title = make("h1", {}, name, " ");
  const labels = make("span", { class: "labels-of" });
  const relabel = exported ? null : labelsButton(name, () => run.row.labels, (changed) => { run.row.labels = changed; draw(); });
  const note = make("p", { class: "note", role: "status" });
  const tiles = make("dl", { class: "tiles" });
  const trend = make("span", { class: "trend" });
  const tabs = make("nav", { class: "tabs", "aria-label": "Views of the run" });
  const place = make("div", { class: "tab" });
  const does = actions(name);
  const context = { name, path, run: () => run, query, onlink };

  function draw() {
    const { tags, note: remark } = run.row.labels;
    fill(title, name, " ", stateBadge(run.row.state));
    fill(labels, tags.map((each) => make("span", { class: "tag" }, each)), remark ? make("span", { class: "remark muted small", title: remark }, remark) : null);
    const hasFailed = run.row.state === "failed";
    fill(note, run.progress && !run.final && run.row.note.startsWith("step ") ? "" : run.row.note); // the tiles have the same
    note.classList.toggle("failure", hasFailed);
    fill(tiles, tilesOf(run, trend));
    does.cancel.hidden = run.final;
    tick();
  }

  const lookAtTrend = paced(AGAIN, async () => drawTrend(trend, (await ask("/api/trends", { run: name }))[name]));

  // Shows how long ago the run reported something, so that a reader sees that the data is live.
  function tick() {
    const wait = Math.round((Date.now() - heard) / 1000);
    live.classList.toggle("on", !run.final && !exported);
    live.textContent = exported ? "exported" : run.final ? "" : wait < 3 ? "live" : `live, nothing new for ${duration(wait)}`;
    const running = tiles.querySelector("[data-since]");
    if (running && !run.final) running.textContent = `for ${took(run.row)}`;
  }

  async function open(wanted, words) {
    const mine = (turn += 1);
    const shown = wanted in TABS ? wanted : run.row.state === "failed" ? "why" : "overview";
    tab?.close();
    tab = null;
    fill(tabs, Object.keys(TABS).map((each) => make("a", { href: addressOfRun(name, each), "aria-current": each === shown ? "page" : null }, each)));
    requestAnimationFrame(() => tabs.scrollTo({ left: tabs.querySelector("[aria-current]").offsetLeft - tabs.clientWidth / 2 })); // on a phone, the row of tabs is wider than the screen
    const inside = make("div", {}, make("p", { class: "muted" }, "Loading …"));
    fill(place, inside);
    place.dataset.tab = shown;
    const made = await TABS[shown](inside, { ...context, query: words });
    if (mine !== turn) return made.close();
    tab = { name: shown, refresh: () => null, ...made };
    made.shown?.();
  }

  // Changes are collected while the ones before are drawn, so that a run of 1,000 ranks does not keep the server busy.
  let changes = new Set();
  const again = paced(AGAIN, async () => {
    const all = [...changes];
    changes = new Set();
    if (all.includes("state") || all.includes("beats") || all.includes("metrics")) {
      run = await ask(path);
      draw();
    }
    if (all.includes("metrics")) lookAtTrend().catch((error) => onlink(error.message));
    Promise.resolve(tab?.refresh(all)).catch((error) => onlink(error.message)); // each tab has its own pace
  });
  function take({ changed }) {
    heard = Date.now();
    for (const each of changed) changes.add(each);
    again().catch((error) => onlink(error.message));
  }

  fill(head, make("div", { class: "run-title" }, title, live, labels, relabel, exported ? null : does.element), note, tiles, tabs);
  fill(main, make("div", { class: "run" }, head, problemsOf(run), place));
  draw();
  lookAtTrend().catch((error) => onlink(error.message));
  const opening = open(asked, query).catch((error) => onlink(error.message)); // the header is shown before the tab is read
  const stop = follow(name, take, onlink, run.seen);
  const ticking = exported ? 0 : setInterval(tick, 1000);
  const close = () => { stop(); clearInterval(ticking); turn += 1; tab?.close(); tab = null; };
  close.move = ([, wanted], words) => opening.then(() => open(wanted, words)).catch((error) => onlink(error.message));
  return close;
}

// -- the header

function tilesOf(run, trend) {
  const { row, progress, headline, hours } = run;
  const known = progress ?? {};
  const step = known.step ?? run.result?.step ?? null;
  const isOver = known.step > known.total; // the program goes on longer than it has announced
  const share = known.total && !isOver ? known.step / known.total : null;
  const eta = isOver ? null : known.eta;
  const cost = [["gpu_hours", "GPU time"], ["rank_hours", "rank time"]].find(([key]) => hours[key]);
  const of = row.started ? make("span", { "data-since": "" }, row.ended ? `took ${took(row)}` : `for ${took(row)}`) : run.final ? "never started" : `for ${duration(Date.now() / 1000 - row.created)}`;
  return [
    tile("State", row.state, [of, row.restarts ? `, ${row.restarts} restart${row.restarts > 1 ? "s" : ""}` : ""], row.state),
    tile("Step", step === null ? "-" : number(step), [known.total ? `of ${number(known.total)}` : "", share === null ? "" : make("progress", { max: 1, value: share, "aria-label": "Steps done" })]),
    tile(headline ? headline.name : "Loss", headline ? number(headline.value) : "-", headline ? trend : run.final ? "no metric" : "no metric yet"),
    tile("Rate", known.rate ? number(known.rate, 3) : "-", known.rate ? `samples/s${run.final ? " at its end" : ""}` : ""),
    run.final ? tile("Ended", row.ended ? timeOfDay(row.ended) : "-", ago(row.ended)) : tile("ETA", eta ? duration(eta) : "-", eta ? `at ${timeOfDay(Date.now() / 1000 + eta)}` : isOver ? "beyond its total" : known.total ? "" : "total unknown"),
    tile("Cost", cost ? amount(hours[cost[0]]) : "-", cost ? [cost[1], hours.gpu_watt_hours ? `, ${number(hours.gpu_watt_hours, 3)} Wh` : ""] : "")];
}

function amount(hours) {
  return hours < 1 ? duration(3600 * hours) : `${number(hours, 4)} h`;
}

function tile(name, value, more, state = "") {
  return make("div", { class: `tile ${state}` }, make("dt", {}, name), make("dd", {}, make("strong", {}, value), make("span", { class: "muted small" }, more)));
}

function problemsOf({ problems }) {
  return problems.map((each) => make("p", { class: "problem", role: "alert" }, each));
}

// The actions on a run. They are made once, so that their result stays and the keyboard's focus is kept.
function actions(name) {
  const said = make("span", { role: "status" });
  const path = pathOf(name);
  const act = async (what, body, element) => {
    element.disabled = true;
    fill(said, `${what} …`);
    try {
      const done = await post(`${path}/${what}`, body);
      fill(said, done.said, " ", done.id ? runLink(done.id) : "");
    } catch (error) {
      fill(said, make("span", { role: "alert" }, wordsOf(error)));
    }
    element.disabled = false;
  };
  const cancel = button("Cancel", () => confirmed(`Cancel ${name}?`, null, () => act("cancel", {}, cancel)), { class: "danger", title: "End this run" });
  const repeat = button("Repeat", () => confirmed(`Submit ${name} once more?`, null, () => act("repeat", {}, repeat)), { title: "Submit the same job with the same code once more, as a new run" });
  const pull = button("Pull", () => confirmed("Copy its logs, results, outputs and newest checkpoint to a folder of the server's machine",
    `~/orch/${name}`, (to) => act("pull", { to }, pull)), { title: "Copy the logs, results, outputs and the newest checkpoint of this run to a folder" });
  return { element: make("div", { class: "tools" }, said, cancel, repeat, pull), cancel };
}

function confirmed(question, value, go) {
  const input = value === null ? null : make("input", { type: "text", value, "aria-label": "Folder", size: "40" });
  const dialog = openDialog(question, [make("p", {}, question), input,
    make("div", { class: "tools" }, button("Yes", () => { dialog.close(); go(input?.value); }), button("No", () => dialog.close(), { autofocus: true }))]);
}

// -- tabs

async function overviewTab(place, { name, path, run, onlink }) {
  const parts = ["timeline", "result", "pace", "ranks", "about"].map(() => make("div"));
  const [time, result, pace, ranks, about] = parts;
  const curve = make("div", { class: "tall" }, make("p", { class: "muted" }, "Loading the curve …"));
  let panel = null;

  async function drawPace() {
    const found = await ask(`${path}/pace`);
    tellPace(pace, found.pace, found.findings);
  }

  function draw() {
    fill(time, timeline(run()));
    fill(result, run().result ? section("Result", facts(Object.entries(run().result))) : null);
    const trouble = run().ranks;
    fill(ranks, trouble.length ? section("Ranks with trouble", table("At most five of them", ["Rank", "Host", "State", "End"], trouble.map((each) => [each.rank, each.host, stateBadge(each.state), each.end || "-"]))) : null);
    fill(about, section("About", facts(aboutOf(run()))));
  }

  const paceAgain = paced(AGAIN, drawPace);
  fill(place, make("div", { class: "two" }, make("div", {}, pace, curve, ranks), make("div", {}, time, result, about)));
  draw();
  const making = curvesPanel([name], run().headline?.name ?? "", { only: true, attempts: () => run().attempts }).then((made) => { panel = made; fill(curve, made.element); });
  for (const each of await Promise.allSettled([making, drawPace()])) if (each.status === "rejected") onlink(each.reason.message);
  return {
    refresh: (changed) => {
      draw();
      return Promise.all([changed.includes("metrics") ? panel?.refresh() : null, changed.includes("use") ? paceAgain() : null]);
    },
    close: () => panel?.close(),
  };
}

async function curvesTab(place, { name, query, run }) {
  const panels = await curvesPanel([name], run().headline?.name ?? "", { query, place: addressOfRun(name, "curves"), attempts: () => run().attempts });
  fill(place, panels.element);
  return { refresh: (changed) => (changed.includes("metrics") ? panels.refresh() : null), close: panels.close };
}

async function logsTab(place, { name, path, run }) {
  let log = null;
  let count = 0;

  async function draw() {
    count = run().logs.length;
    log?.close();
    log = await logPanel(name, run().logs, blamed(run()));
    fill(place, count ? log.element : emptyNote(run().final ? "This run has left no log: no rank was started." : "No log yet: a rank's log begins when the rank is started."));
    log.shown();
  }

  const again = paced(AGAIN, () => (run().logs.length === count && count ? log.refresh() : draw()));
  await draw();
  return {
    refresh: (changed) => (run().logs.length !== count || changed.includes("logs") ? again() : null),
    shown: () => log.shown(),
    close: () => log.close(),
  };
}

function blamed({ verdict, logs }) {
  if (!verdict || verdict.rank === null || verdict.outcome !== "failed") return null;
  return logs.find((each) => each[0] === verdict.attempt && each[1] === verdict.rank) ?? null;
}

async function configTab(place, { run }) {
  const { job, row, values } = run();
  const rows = flat(job);
  const search = make("input", { type: "search", placeholder: "filter keys and values", "aria-label": "Filter", oninput: draw });
  const body = make("div");
  function draw() {
    const words = search.value.toLowerCase();
    const shown = rows.filter(([key, value]) => `${key} ${value}`.toLowerCase().includes(words));
    fill(body, shown.length ? table(`${shown.length} of ${rows.length} settings`, ["Setting", "Value"], shown) : emptyNote(rows.length ? "No setting has these words." : "The job of this run can't be read, or it is the program of a launch line."));
  }
  const compare = make("input", { type: "text", placeholder: "another run", "aria-label": "Another run" });
  const go = (event) => { event.preventDefault(); location.hash = addressOfDiff(compare.value, row.run_id); };
  const own = Object.entries(values);
  fill(place, own.length ? section("Values of its point", facts(own)) : null,
    section("Job", make("div", { class: "tools" }, search, exported ? null : make("form", { class: "tools", onsubmit: go }, make("label", {}, "Diff to ", compare), make("button", {}, "Show"))), body));
  draw();
  return { close: () => {} };
}

async function whyTab(place, { run }) {
  function draw() {
    const { verdict, logs, row } = run();
    const [before, end] = [attemptsOf(run()), accountOf(run())];
    if (!verdict || verdict.outcome === "succeeded") {
      fill(place, section("Why", emptyNote(verdict ? "This run has succeeded: if a run fails, this view says which rank failed first, where and why." : "This run has not ended: if it fails, this view says which rank failed first, where and why.")), end, before);
      return;
    }
    const trace = verdict.error?.traceback ?? verdict.tail.join("\n");
    const where = [verdict.rank === null ? null : ["Rank", verdict.rank], verdict.host ? ["Host", verdict.host] : null, ["Attempt", verdict.attempt],
      verdict.code === null ? null : ["Exit code", verdict.code], verdict.signal ? ["Signal", verdict.signal] : null, verdict.cause === "none" ? null : ["Cause", CAUSES[verdict.cause] ?? verdict.cause.replaceAll("_", " ")]].filter(Boolean);
    const log = logs.length && verdict.rank !== null ? make("p", {}, make("a", { href: addressOfRun(row.run_id, "logs") }, `The log of rank ${verdict.rank}`)) : null;
    fill(place, section("Why", facts(where), verdict.hint ? make("p", { class: "sentence" }, verdict.hint) : null,
      trace ? make("pre", { class: "trace", tabindex: "0", role: "region", "aria-label": "Traceback" }, trace) : make("p", { class: "muted" }, "The rank has left no traceback and no output."), log), end, before);
  }

  draw();
  return { refresh: (changed) => { if (changed.includes("state")) draw(); }, close: () => {} };
}

// Says what an ended run reached, what is lost, and how to go on.
function accountOf({ account }) {
  if (!account) return null;
  const lost = account.lost_steps && account.next ? `; ${account.lost_steps} ${account.lost_steps === 1 ? "step" : "steps"} after it are lost` : "";
  const found = [account.ended === null ? null : ["Ended", `${clock(account.ended)} (${ago(account.ended)})`], account.last_step === null ? null : ["Last step", account.last_step],
    account.checkpoint || account.next ? ["Newest checkpoint", `${account.checkpoint || "none"}${lost}`] : null, account.next ? ["Next", account.next] : null, account.command ? ["To go on", make("code", {}, account.command)] : null].filter(Boolean);
  return section("The end", facts(found));
}

// Lists the attempts of a run: the checkpoint that each resumed from, and how it ended.
function attemptsOf({ attempts, verdict, row, final }) {
  const started = attempts.filter((each) => each.began !== null);
  if (!started.length) return null;
  const rows = started.map((each, at) => {
    const isLast = at === started.length - 1;
    const until = each.ended ?? (isLast ? row.ended : null);
    const end = isLast && each.number === verdict?.attempt ? (verdict.outcome === "failed" ? "failed, as said above" : verdict.outcome) : each.end || "-";
    return [each.number, clock(each.began), duration((until ?? Date.now() / 1000) - each.began), resumed(each), isLast && !final ? "still running" : end];
  });
  const said = row.restarts ? `orch restarted this run ${row.restarts === 1 ? "once" : `${row.restarts} times`}` : "orch has not restarted this run";
  return section("Attempts", table(said, ["Attempt", "Began", "Took", "Started from", "End"], rows));
}

function resumed({ resumed_from: loaded, offered }) {
  if (loaded) return `checkpoint ${loaded}`;
  return offered ? `the beginning, although checkpoint ${offered} was offered` : "the beginning";
}

// -- parts of the tabs

function aboutOf(run) {
  const { row } = run;
  const found = [["Profile", row.profile], ["Nodes", run.nodes || "?"], ["Ranks", row.world_size ?? "?"], ["Submitted", `${clock(row.created)} (${ago(row.created)})`], ["Folder", run.folder]];
  if (run.scheduler_job) found.push(["Job of the scheduler", run.scheduler_job]);
  if (run.repeats) found.push(["Repeats", runLink(run.repeats)]);
  if (run.sweep) found.push(["Sweep", sweepLink(run.sweep)]);
  for (const each of run.notes) found.push(["Note", each]);
  return [...found, ...Object.entries(run.values)];
}

function facts(pairs) {
  return make("dl", { class: "facts" }, pairs.map(([key, value]) => make("div", {}, make("dt", {}, key),
    make("dd", {}, value instanceof Node ? value : typeof value === "object" ? JSON.stringify(value) : number(value)))));
}

// Returns the rows of a settings file: job.args[0], job.env.X.
function flat(value, key = "") {
  if (value === null || typeof value !== "object") return value === null || value === "" ? [] : [[key, String(value)]];
  if (Array.isArray(value) && value.every((each) => typeof each !== "object")) return value.length ? [[key, value.join(" ")]] : [];
  return Object.entries(value).flatMap(([name, each]) => flat(each, Array.isArray(value) ? `${key}[${name}]` : key ? `${key}.${name}` : name));
}

function timeline(run) {
  const { start, end, spans } = run.timeline;
  const whole = Math.max(end - start, 0.001);
  const rows = spans.map((span) => {
    const until = span.end ?? end;
    const kind = span.kind === "attempt" && span.failed ? "attempt failed" : span.kind;
    const bar = make("span", { class: `span ${kind} ${span.end === null && !isFinal(run.row.state) ? "going" : ""}` });
    bar.style.left = `${(100 * (span.start - start)) / whole}%`;
    bar.style.width = `${Math.max(0.3, (100 * (until - span.start)) / whole)}%`;
    const isLast = run.verdict?.attempt === span.attempt; // the header has the reason of that failure
    const from = span.kind === "attempt" ? run.attempts.find((each) => each.number === span.attempt)?.resumed_from : null;
    const words = [duration(until - span.start), from ? `resumed from ${from}` : "", span.failed ? "failed" : "", span.failed && isLast ? "" : span.note].filter(Boolean).join(", ");
    return make("li", {}, make("span", { class: "name" }, span.name), make("span", { class: "track", "aria-hidden": "true" }, bar), make("span", { class: "words" }, words));
  });
  return section("Time", make("ol", { class: "timeline" }, rows));
}
