// How names, numbers and times are written. Nothing here, or anywhere on the page, becomes HTML.

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

// A name from outside with what can't be seen made visible, so that two names that differ look different.
export function visible(text) {
  if (text === "") return "(empty)";
  return text.replace(UNSEEN, (one) => (one <= "\u001f" ? String.fromCharCode(0x2400 + one.charCodeAt(0)) : "\ufffd"));
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(size >= 100 ? 1 : 3);
}

export const gap = (value) => (value === null ? "–" : (value > 0 ? "+" : "") + number(value));

export const count = (value) => value.toLocaleString("en");

export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

// The same with one unit, for the list.
export function shortAge(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

export function time(unixMs) {
  if (unixMs === null || unixMs < 0) return "–";
  const at = new Date(unixMs);
  const two = (part) => String(part).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
