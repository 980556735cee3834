// The columns of the table of runs: those that each run has, and those of its config, result, metrics, machines and git.
import { ago, clock, duration, isFinal, number } from "./format.js";

const WAITING = new Set(["submitting", "pending"]);
export const KINDS = { run: "Run", value: "Result, or else newest value", config: "Config", result: "Result", metric: "Newest metrics", machine: "Machines", git: "Git" };
const SHORT = ["config", "result", "metric", "machine", "git"]; // `lr` means config.lr before result.lr
const now = () => Date.now() / 1000;
const seconds = (row) => (row.started ? (row.ended ?? now()) - row.started : null);

// `value` is compared, and `text` is shown. Without `text`, the value is shown by `number`.
const OWN = {
  run: { title: "Run", value: (row) => row.run_id },
  name: { title: "Name", value: (row) => row.name },
  state: { title: "State", value: (row) => row.state },
  profile: { title: "Profile", value: (row) => row.profile },
  ranks: { title: "Ranks", value: (row) => row.world_size },
  submitted: { title: "Submitted", value: (row) => row.created || null, text: (row) => ago(row.created), hint: (row) => clock(row.created) },
  age: { title: "Age", value: (row) => (row.created ? now() - row.created : null), text: (row) => ago(row.created) },
  ended: { title: "Ended", value: (row) => row.ended, text: (row) => ago(row.ended), hint: (row) => clock(row.ended) },
  took: { title: "Took", value: seconds, text: (row) => duration(seconds(row)), spread: duration },
  restarts: { title: "Restarts", value: (row) => row.restarts },
  sweep: { title: "Sweep", value: (row) => row.sweep },
  tag: { title: "Tags", value: (row) => row.labels.tags, text: (row) => row.labels.tags.join(", ") },
  note: { title: "Note", value: (row) => row.labels.note },
  reason: { title: "Progress or reason", value: (row) => row.note },
};
export const DEFAULTS = ["run", "state", "reason", "tag", "ranks", "took", "submitted", "profile"]; // suggested columns come behind the reason
const MOST_SUGGESTED = 2; // settings, and as many metrics
const LEAST_SHARE = 0.2; // at least this share of the runs has a suggested column
const SAYS_LITTLE = /(^|[._])(epochs?|steps?|seconds|time|script|seed|attempt|restarts|rank|rate|memory|mfu)$/;

export function isWaiting(row) {
  return WAITING.has(row.state);
}

export function stateWords(row) {
  return [row.state, isFinal(row.state) ? "ended" : "live", ...(isWaiting(row) ? ["waiting"] : [])];
}

// Returns the column of a key; null if no run has it.
export function column(key) {
  if (OWN[key]) return { key, kind: "run", spread: number, ...OWN[key] };
  const [kind, ...rest] = key.split(".");
  if (!KINDS[kind] || !rest.length) return null;
  const title = rest.join(".");
  if (kind === "value") {
    const source = (row) => [`result.${title}`, `metric.${title}`].find((each) => row.facts[each] !== undefined);
    return { key, kind, title, spread: number, value: (row) => row.facts[source(row)] ?? null, about: `${title} of the result, or else the newest value`,
      hint: (row) => ({ result: "of the result", metric: "the newest value" })[source(row)?.split(".")[0]] };
  }
  return { key, kind, title, about: key, spread: number, value: (row) => row.facts[key] ?? null };
}

export function textOf(column_, row) {
  if (column_.text) return column_.text(row) || "-";
  return number(column_.value(row) === "" ? null : column_.value(row));
}

// All columns that these rows have. Filters use `find`, `names` and `text`.
export class Columns {
  constructor(rows) {
    this.rows = rows;
    this.facts = [...new Set(rows.flatMap((row) => Object.keys(row.facts)))].sort();
    this.values = this.facts.filter((key) => key.startsWith("result.") && this.facts.includes(`metric.${key.slice(7)}`)).map((key) => `value.${key.slice(7)}`);
    this.own = Object.keys(OWN);
    this.searched = new WeakMap();
  }

  // Returns the function from a row to its value; null if no run has such a column.
  find(key) {
    if (key === "state") return stateWords;
    if (OWN[key]) return OWN[key].value;
    const named = this.facts.filter((each) => each.toLowerCase() === key || each.toLowerCase().slice(each.indexOf(".") + 1) === key);
    const ended = named.length ? named : this.facts.filter((each) => each.toLowerCase().endsWith(`.${key}`));
    if (!ended.length) return null;
    const order = ended.sort((one, other) => SHORT.indexOf(one.split(".")[0]) - SHORT.indexOf(other.split(".")[0]));
    return (row) => row.facts[order.find((each) => row.facts[each] !== undefined)];
  }

  // Returns the columns that a table shows by default: settings in which the runs differ, and the metrics that say most about quality.
  suggested() {
    this.best ??= this.chosen(this.rows);
    return this.best;
  }

  chosen(rows) {
    const keys = [...this.values, ...this.facts];
    const values = new Map(keys.map((key) => [key, rows.map(column(key).value).filter((value) => value !== null)]));
    const count = (key) => values.get(key).length;
    const there = keys.filter((key) => !SAYS_LITTLE.test(key) && new Set(values.get(key)).size > 1 && count(key) >= LEAST_SHARE * rows.length);
    const quality = (key) => (/acc|f1|auc|bleu|score|reward/.test(key) ? 2 : /loss|error|perplexity/.test(key) ? 1 : 0);
    const best = (those, rating) => those.sort((one, other) => rating(other) - rating(one) || count(other) - count(one)).slice(0, MOST_SUGGESTED);
    const name = (key) => key.slice(key.indexOf(".") + 1);
    const names = new Set(); // a name once: as value.NAME, or else as result.NAME or metric.NAME
    const all = there.filter((key) => /^(value|result|metric)\./.test(key) && quality(key)).filter((key) => !names.has(name(key)) && names.add(name(key)));
    const measured = all.filter((key) => ![...names].some((each) => name(key).endsWith(`.${each}`))); // eval.loss beside loss
    return [...best(there.filter((key) => key.startsWith("config.")), () => 0), ...best(measured, quality)];
  }

  names() {
    return [...this.own, ...this.facts.map((each) => each.slice(each.indexOf(".") + 1)), ...this.facts];
  }

  // Returns the text in which a search looks.
  text(row) {
    let found = this.searched.get(row);
    if (found === undefined) {
      found = [row.run_id, row.name, row.profile, row.state, row.note, row.labels.note, ...row.labels.tags].join(" ").toLowerCase();
      this.searched.set(row, found);
    }
    return found;
  }
}

// Orders rows by a column: numbers before texts, and rows without a value last.
export function sorted(rows, by, isDescending) {
  const keyed = rows.map((row) => [by.value(row), row]);
  const turn = isDescending ? -1 : 1;
  return keyed.sort(([one], [other]) => order(plain(one), plain(other), turn)).map(([, row]) => row);
}

function order(one, other, turn) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "number" && typeof other === "number") return turn * (one - other);
  if (typeof one === "number" || typeof other === "number") return typeof one === "number" ? -1 : 1;
  return turn * (one < other ? -1 : one > other ? 1 : 0);
}

function plain(value) {
  if (Array.isArray(value)) return value.join(", ") || null;
  if (typeof value === "number" || value === null || value === undefined || value === "") return value === "" ? null : value ?? null;
  return String(value).toLowerCase();
}

// Returns groups of rows with the same text in a column, the largest group first: [[text, rows], ...].
export function grouped(rows, by) {
  const groups = new Map();
  for (const row of rows) {
    const value = by.value(row);
    const words = Array.isArray(value) ? (value.length ? value : ["-"]) : [textOf(by, row)];
    for (const word of words) groups.set(word, [...(groups.get(word) ?? []), row]);
  }
  return [...groups].sort((one, other) => other[1].length - one[1].length);
}

// Returns the mean and the spread (standard deviation) of the numbers in a column, or null if it has no number.
export function meanAndSpread(rows, of) {
  const values = rows.map(of.value).filter((value) => typeof value === "number");
  if (!values.length) return null;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const isOne = values.every((value) => value === values[0]);
  return { count: values.length, mean: isOne ? values[0] : mean, spread: isOne ? null : Math.sqrt(squares / (values.length - 1)) };
}
