// Numbers and times as words.

const ENDED = new Set(["succeeded", "failed", "cancelled"]);

export function isFinal(state) {
  return ENDED.has(state);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "-";
  const value = Math.max(0, seconds);
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

export function ago(moment) {
  return moment ? `${duration(Date.now() / 1000 - moment)} ago` : "-";
}

export function clock(moment) {
  return moment ? new Date(moment * 1000).toLocaleString() : "-";
}

export function took(row) {
  return row.started ? duration((row.ended ?? Date.now() / 1000) - row.started) : "-";
}

export function number(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "-" : String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  let size = value;
  while (size >= 1000 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  return `${at === 0 ? size : size.toFixed(1)} ${units[at]}`;
}
