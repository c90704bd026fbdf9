// The three tables. A cell is made from text, never from HTML.

import { CORRECTED, INCOMPLETE } from "./steps.js";
import { age, count, gap, number, time, visible } from "./text.js";

export const PAGE = 20;
const OPEN_SHOWN = 40;
const LETTERS_SHOWN = 50;

export function drawOpen(table, rows, selected, now, grace, hashOf) {
  const own = (row) => row.run === selected?.run && row.scope === selected?.scope;
  const ordered = [...rows.filter(own), ...rows.filter((row) => !own(row))].slice(0, OPEN_SHOWN);
  fill(table, ordered.map((row) => {
    const made = document.createElement("tr");
    if (own(row)) made.className = "own";
    const link = document.createElement("a");
    link.href = hashOf(row.run, row.scope);
    link.textContent = visible(row.run) + (row.scope === "rollout" ? "" : ` · ${visible(row.scope)}`);
    const share = document.createElement("td");
    share.className = "filling wide";
    if (row.expected) share.append(meter(row.samples / row.expected));
    made.append(
      cell(link, "name"), cell(count(row.step), "number"),
      cell(row.expected === null ? count(row.samples) : `${count(row.samples)} of ${count(row.expected)}`, "number"), share,
      cell(count(row.rollouts), "number"), cell(count(row.groups), "number wide"),
      cell(row.opened_unix_ms === null ? "–" : age((now - row.opened_unix_ms) / 1000), "number"),
      cell(waitsFor(row, now, grace), "text"),
    );
    return made;
  }), 8, "No step is open here.");
  return ordered.length;
}

function waitsFor(row, now, grace) {
  if (!row.is_closing) {
    const quiet = row.last_unix_ms === null ? 0 : (now - row.last_unix_ms) / 1000;
    return quiet > 30 ? `a close marker; nothing new for ${age(quiet)}` : "samples, and a close marker";
  }
  const wants = [];
  if (row.heard < row.producers) wants.push(`${count(row.producers - row.heard)} of ${count(row.producers)} close markers`);
  if (row.expected !== null && row.samples < row.expected) {
    const missing = row.expected - row.samples;
    wants.push(`${count(missing)} ${missing === 1 ? "sample" : "samples"}`);
  }
  const left = row.closing_unix_ms === null ? null : grace - (now - row.closing_unix_ms) / 1000;
  const until = left === null ? "" : left > 0 ? `; closes as it is in about ${age(left)}` : "; closing as it is";
  return wants.join(" and ") + until;
}

// Draws one page, newest first, and returns what it shows: [first, end, total], counted from the newest.
export function drawClosed(table, steps, page, reasons) {
  const from = page * PAGE;
  const rows = [];
  const newest = steps.last()?.attempt;
  for (let number_ = from; number_ < Math.min(from + PAGE, steps.length); number_++) {
    const row = steps.row(steps.length - 1 - number_);
    const made = document.createElement("tr");
    if (row.attempt < newest) made.className = "old-attempt";
    made.append(
      cell(count(row.step), "number"), cell(count(row.attempt), "number wide"), cell(count(row.samples), "number"),
      cell(count(row.rollouts), "number mid"), cell(number(row.by_rollout), "number"), cell(number(row.by_sample), "number"),
      cell(gap(row.gap), "number mid"), result(row, reasons),
      cell(row.closed_unix_s < 0 ? "–" : time(row.closed_unix_s * 1000), "wide"),
    );
    rows.push(made);
  }
  fill(table, rows, 9, "No step of this run has closed yet.");
  return [from, Math.min(from + PAGE, steps.length), steps.length];
}

export function told(row, reasons) {
  const notes = [];
  if (row.flags & INCOMPLETE) notes.push(["▲", "incomplete", `incomplete: ${visible(reasons[row.reason] ?? "?")}`]);
  if (row.flags & CORRECTED) notes.push(["◆", "corrected", `corrected, ${count(row.late)} late`]);
  if (row.missing) notes.push(["", "", `${count(row.missing)} without reward`]);
  return notes;
}

function result(row, reasons) {
  const made = cell("", "result");
  const notes = told(row, reasons);
  notes.forEach(([sign, kind, text], place) => {
    if (place) made.append(", ");
    if (sign) {
      const mark = document.createElement("span");
      mark.className = `mark-${kind}`;
      mark.setAttribute("aria-hidden", "true");
      mark.textContent = `${sign} `;
      made.append(mark);
    }
    made.append(text);
  });
  if (!notes.length) {
    made.textContent = "complete";
    made.classList.add("none");
  }
  return made;
}

export function drawLetters(table, letters) {
  const newest = [...letters].reverse().sort((a, b) => (b.unix_ms ?? 0) - (a.unix_ms ?? 0)).slice(0, LETTERS_SHOWN);
  fill(table, newest.map((letter) => {
    const made = document.createElement("tr");
    const where = letter.topic ? `${visible(letter.topic)} [${visible(letter.partition)}] at ${visible(letter.offset)}` : "–";
    made.append(
      cell(time(letter.unix_ms)), cell(letter.reason ? visible(letter.reason) : "–"),
      cell(letter.message ? visible(letter.message) : "–", "text"), cell(where, "text"),
    );
    return made;
  }), 4, "None: every record could be used.");
  return newest.length;
}

function fill(table, rows, columns, none) {
  const body = table.tBodies[0];
  if (rows.length) {
    body.replaceChildren(...rows);
    return;
  }
  const row = document.createElement("tr");
  const empty = cell(none, "none");
  empty.colSpan = columns;
  row.append(empty);
  body.replaceChildren(row);
}

function cell(content, name = "") {
  const made = document.createElement("td");
  made.className = name;
  made.append(content); // a text or a node: append() makes no HTML of a text
  return made;
}

function meter(share) {
  const made = document.createElement("meter");
  made.value = Math.min(1, share);
  made.setAttribute("aria-label", `${Math.round(share * 100)} % of the expected samples`);
  return made;
}
