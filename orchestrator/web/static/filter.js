// The filter of the table of runs: `state:failed lr>0.1 tag:ablation took>10m "out of memory" -name:test`.
// All terms have to hold. A word or a quoted text is searched in all texts of a row.

const OPERATORS = [">=", "<=", "!=", ">", "<", "=", ":"];
const UNITS = { ms: 0.001, s: 1, m: 60, min: 60, h: 3600, d: 86400, w: 604800 };
const EXAMPLE = "Write it like lr>0.1 or state:failed.";

export class FilterError extends Error {}

// Returns the terms of a filter: {negated, key, operator, values} or {negated, text}. Throws FilterError.
export function parse(source) {
  const terms = [];
  let at = 0;

  function quoted() {
    const end = source.indexOf('"', at + 1);
    if (end < 0) throw new FilterError(`The quotation mark before '${source.slice(at + 1)}' is not closed. Add another one at the end of the text.`);
    const text = source.slice(at + 1, end);
    at = end + 1;
    return text;
  }

  function until(stops) {
    const begin = at;
    while (at < source.length && !/\s/.test(source[at]) && !stops.includes(source[at])) at += 1;
    return source.slice(begin, at);
  }

  function values(name) {
    const found = [];
    do {
      if (source[at] === ",") at += 1;
      found.push(source[at] === '"' ? quoted() : until(","));
    } while (source[at] === ",");
    if (found.some((each) => each === "")) throw new FilterError(`There is no value behind '${name}'. ${EXAMPLE}`);
    return found;
  }

  for (;;) {
    while (/\s/.test(source[at] ?? "")) at += 1;
    if (at >= source.length) return terms;
    const negated = source[at] === "-" && /\S/.test(source[at + 1] ?? "");
    if (negated) at += 1;
    if (source[at] === '"') {
      terms.push({ negated, text: quoted().toLowerCase() });
      continue;
    }
    const key = until("<>=!:");
    const operator = OPERATORS.find((each) => source.startsWith(each, at));
    if (operator === undefined) {
      terms.push({ negated, text: (key + until("")).toLowerCase() });
      continue;
    }
    if (!key) throw new FilterError(`There is no column before '${source.slice(at)}'. ${EXAMPLE}`);
    at += operator.length;
    terms.push({ negated, key: key.toLowerCase(), operator, values: values(key + operator) });
  }
}

// Returns a function that tells whether a row passes. `columns` has find(key), which returns a function from a row to its value or null, names() and text(row). Throws FilterError.
export function compile(source, columns, now = new Date()) {
  const tests = parse(source).map((term) => {
    const test = term.text === undefined ? testOf(term, columns, now) : (row) => columns.text(row).includes(term.text);
    return term.negated ? (row) => !test(row) : test;
  });
  return (row) => tests.every((test) => test(row));
}

function testOf({ key, operator, values }, columns, now) {
  const value = columns.find(key);
  if (value === null) throw new FilterError(unknown(key, columns.names()));
  if (operator === ":" || operator === "=" || operator === "!=") {
    const matches = values.map((each) => matcher(each, operator !== ":", now));
    const any = (given) => isThere(given) && matches.some((match) => match(given));
    return operator === "!=" ? (row) => isThere(value(row)) && !any(value(row)) : (row) => any(value(row));
  }
  const limit = number(values.join(","), now);
  if (limit === null) throw new FilterError(`${key}${operator}${values.join(",")}: '${values.join(",")}' is not a number. ${EXAMPLE}`);
  const holds = { ">": (one) => one > limit, "<": (one) => one < limit, ">=": (one) => one >= limit, "<=": (one) => one <= limit }[operator];
  return (row) => typeof value(row) === "number" && holds(value(row));
}

function matcher(wanted, isExact, now) {
  if (wanted === "*") return () => true;
  const text = wanted.toLowerCase();
  const limit = number(wanted, now);
  if (limit !== null && text === "today") return (given) => given >= limit;
  return (given) => {
    if (Array.isArray(given)) return given.some((each) => each.toLowerCase() === text);
    if (typeof given === "number") return given === limit;
    const said = String(given).toLowerCase();
    return isExact ? said === text : said.includes(text);
  };
}

// A number, a duration with a unit in seconds, or a moment: today is the last midnight.
function number(text, now) {
  if (text.toLowerCase() === "today") return new Date(now.getFullYear(), now.getMonth(), now.getDate()) / 1000;
  const found = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(ms|s|m|min|h|d|w)?$/i.exec(text);
  return found ? Number(found[1]) * (found[2] ? UNITS[found[2].toLowerCase()] : 1) : null;
}

function isThere(value) {
  return value !== undefined && value !== null && value !== "" && !(Array.isArray(value) && !value.length);
}

function unknown(key, names) {
  const near = names.map((name) => [distance(key, name.toLowerCase()), name]).filter(([far]) => far <= Math.max(1, key.length / 3)).sort((a, b) => a[0] - b[0])[0];
  const hint = near ? `Did you mean ${near[1]}?` : `To search for the text itself, put it in quotation marks.`;
  return `No run has a column '${key}'. ${hint}`;
}

function distance(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, at) => at);
  for (let at = 1; at <= one.length; at += 1) {
    const next = [at];
    for (let to = 1; to <= other.length; to += 1) {
      next.push(Math.min(next[to - 1] + 1, row[to] + 1, row[to - 1] + (one[at - 1] === other[to - 1] ? 0 : 1)));
    }
    row = next;
  }
  return row[other.length];
}
