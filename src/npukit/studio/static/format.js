// Figures, times and sizes as people read them, in the page's language.
import { look, word } from "./look.js";

const NOTHING = "–";
const UNITS = [
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
];
const locale = () => (look.language === "zh" ? "zh-CN" : "en-GB");
const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

export const whole = (value) => (isMissing(value) ? NOTHING : Math.round(value).toLocaleString(locale()));

// With digits, as one of several, of which the largest decides how all of them are written.
export function figure(value, digits, largest) {
  if (isMissing(value)) return NOTHING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  const scale = largest ?? size;
  if (scale >= 1e5 || scale < 1e-3) return value.toExponential(digits ?? 2).replace("e+", "e");
  if (digits !== undefined) return value.toFixed(digits);
  return size >= 1000 ? whole(value) : value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
}

export function bytes(value, digits) {
  if (isMissing(value)) return NOTHING;
  const [size, unit] = UNITS.find(([each]) => value >= each) ?? [1, "B"];
  return `${(value / size).toFixed(digits ?? (size === 1 || value >= 100 * size ? 0 : 1))} ${unit}`;
}

export const percent = (share, digits) =>
  isMissing(share) ? NOTHING : `${(100 * share).toFixed(digits ?? (share < 0.1 ? 1 : 0))}%`;

export function duration(seconds) {
  if (isMissing(seconds)) return NOTHING;
  if (seconds < 60) return word("seconds", { count: Math.round(seconds) });
  if (seconds < 3600) return word("minutes", { count: Math.floor(seconds / 60), rest: Math.floor(seconds % 60) });
  if (seconds < 172800)
    return word("hours", { count: Math.floor(seconds / 3600), rest: Math.floor((seconds % 3600) / 60) });
  return word("days", { count: (seconds / 86400).toFixed(1) });
}

export function when(seconds) {
  if (!seconds) return NOTHING;
  const date = new Date(seconds * 1000);
  const time = { hour: "2-digit", minute: "2-digit" };
  const isToday = new Date().toDateString() === date.toDateString();
  return date.toLocaleString(locale(), isToday ? time : { day: "numeric", month: "short", ...time });
}

// A value of a configuration or a result.
export function plain(value) {
  if (value === null || value === undefined || value === "") return NOTHING;
  if (typeof value === "boolean") return word(value ? "yes" : "no");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// An identifier of a program, as words: learning_rate becomes "Learning rate".
export function readable(name) {
  const text = name.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
