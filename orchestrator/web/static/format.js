// Sizes, durations, rates and numbers as text. protocol/quantities.py has the same rules for the terminal, and one table of cases tests both.

const NOTHING = "-";
const MOST_PLAIN = 1e15; // larger numbers have an exponent
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const ENDED = new Set(["succeeded", "failed", "cancelled"]);

export function isFinal(state) {
  return ENDED.has(state);
}

// A number of bytes: 812 B, 1.4 MiB, 2.0 GiB.
export function bytes(count) {
  if (!isNumber(count)) return NOTHING;
  let value = count;
  let at = 0;
  while (at < SIZES.length - 1 && rounded(value, at ? 1 : 0) >= 1024) {
    value /= 1024;
    at += 1;
  }
  return `${fixed(value, at ? 1 : 0)} ${SIZES[at]}`;
}

// A duration: 4.2 ms, 830 ms, 8.3 s, 2 min 05 s, 3 h 12 min, 4 d 2 h. A negative duration counts as 0, because clocks differ.
export function duration(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const value = Math.max(0, seconds);
  if (rounded(value, 3) < 1) {
    const tenths = rounded(1000 * value, 1);
    return value ? `${fixed(1000 * value, tenths > 0 && tenths < 10 ? 1 : 0)} ms` : "0 s";
  }
  if (rounded(value, 1) < 60) return `${fixed(value, 1)} s`;
  const whole = Math.max(60, Math.floor(value));
  const [minutes, hours] = [Math.floor(whole / 60), Math.floor(whole / 3600)];
  if (minutes < 60) return `${minutes} min ${padded(whole % 60)} s`;
  return hours < 48 ? `${hours} h ${padded(minutes % 60)} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// A rate: 1,234 samples/s or 12.3 steps/s, and for the unit "B" 1.4 MiB/s.
export function rate(perSecond, of) {
  if (!isNumber(perSecond)) return NOTHING;
  return of === "B" ? `${bytes(perSecond)}/s` : `${number(perSecond, 3)} ${of}/s`;
}

// A number with so many significant digits, or a whole number: 20,000, 0.33333, 12,346, 8.59e-4. Other values are returned as text.
export function number(given, digits = 5) {
  if (given === null || given === undefined) return NOTHING;
  if (typeof given !== "number") return String(given);
  if (!Number.isFinite(given)) return Number.isNaN(given) ? "nan" : given < 0 ? "-inf" : "inf";
  const sign = given < 0 ? "-" : "";
  const value = Math.abs(given);
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  if (value >= MOST_PLAIN || (value > 0 && value < 1e-3)) return `${sign}${withoutZeros(mantissa)}e${Number(exponent)}`;
  const whole = Math.floor(value + 0.5);
  if (value === whole || value >= Number(`1e${digits - 1}`)) return sign + whole.toLocaleString("en-US");
  const places = digits - 1 - Number(exponent);
  return sign + withoutZeros(rounded(value, places).toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }));
}

export function ago(moment) {
  return moment ? `${duration(Date.now() / 1000 - moment)} ago` : NOTHING;
}

// A moment as 2026-11-25 17:00:42, and the two parts of that text.
export function clock(moment) {
  return moment ? `${day(moment)} ${timeOfDay(moment)}` : NOTHING;
}

export function day(moment) {
  const date = new Date(moment * 1000);
  return [date.getFullYear(), date.getMonth() + 1, date.getDate()].map(padded).join("-");
}

export function timeOfDay(moment) {
  const date = new Date(moment * 1000);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(padded).join(":");
}

export function took(row) {
  return row.started ? duration((row.ended ?? Date.now() / 1000) - row.started) : NOTHING;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function rounded(value, places) {
  const scale = Number(`1e${places}`);
  return Math.floor(value * scale + 0.5) / scale;
}

function fixed(value, places) {
  return rounded(value, places).toFixed(places);
}

function withoutZeros(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function padded(value) {
  return String(value).padStart(2, "0");
}
