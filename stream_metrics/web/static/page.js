// The page: one stream of events in, and what it changes drawn once a frame. The run shown is in the address, so that a
// link to it can be passed on.

import { Chart, RANGES } from "./chart.js";
import { Runs } from "./runs.js";
import { Steps } from "./steps.js";
import { PAGE, drawClosed, drawLetters, drawOpen, told } from "./tables.js";
import { count, gap, number, visible } from "./text.js";

const RETRY_MS = 3000;
const LOST_MS = 15000;
const at = (id) => document.getElementById(id);

const state = {
  hello: null, selected: null, steps: new Steps(), hasSteps: false, page: 0, reasons: [], totals: null,
  open: [], openTotal: 0, letters: [], share: 0, trouble: "", notReady: "", offset: 0, heardAt: 0, point: null,
};
const stale = new Set(); // what to draw in the next frame
let source = null;

const now = () => Date.now() + state.offset;
const chart = new Chart(at("chart"), (point) => { state.point = point; redraw("readout"); }, () => redraw("ranges"));
const runs = new Runs(at("list"), at("search"), at("runs-count"), (run, scope) => {
  showRuns(false);
  location.hash = hashOf(run, scope);
}, now);

// --- the address and the theme

function hashOf(run, scope) {
  return `#${new URLSearchParams({ run, scope })}`;
}

function fromHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  return given.has("run") ? { run: given.get("run"), scope: given.get("scope") ?? "rollout" } : null;
}

const THEMES = ["system", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
const keep = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("theme", value); } catch { /* private mode: not remembered */ } } };
let theme = THEMES.includes(keep.get()) ? keep.get() : "system";

function applyTheme() {
  document.documentElement.dataset.theme = theme === "system" ? (system.matches ? "dark" : "light") : theme;
  at("theme").textContent = `Theme: ${theme}`;
  chart.recolour();
}

system.addEventListener("change", applyTheme);
at("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  keep.set(theme);
  applyTheme();
});

function showRuns(isShown) {
  at("runs").classList.toggle("shown", isShown);
  at("runs-toggle").setAttribute("aria-expanded", String(isShown));
  if (isShown) runs.draw();
}
at("runs-toggle").addEventListener("click", () => showRuns(!at("runs").classList.contains("shown")));

// --- the stream

function select(selected) {
  state.selected = selected;
  state.steps = new Steps();
  state.hasSteps = false;
  state.page = 0;
  state.point = null;
  chart.isZoomed = false;
  if (selected) runs.select(selected.run, selected.scope);
  redraw("all");
  connect();
}

function connect() {
  source?.close();
  const query = state.selected ? `?${new URLSearchParams(state.selected)}` : "";
  const mine = new EventSource(`/api/stream${query}`);
  source = mine;
  for (const [name, take] of Object.entries(TAKES)) {
    mine.addEventListener(name, (event) => {
      if (mine !== source) return;
      state.heardAt = Date.now();
      take(JSON.parse(event.data));
    });
  }
  mine.addEventListener("error", () => {
    if (mine !== source) return;
    state.heardAt = 0;
    redraw("status");
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => mine === source && connect(), RETRY_MS);
  });
}

const TAKES = {
  hello(told) {
    state.hello = told;
    state.offset = told.now_unix_ms - Date.now();
    redraw("status", "about");
  },
  status(told) {
    state.notReady = told.not_ready;
    state.offset = told.now_unix_ms - Date.now();
    redraw("status");
  },
  progress(told) {
    Object.assign(state, told);
    redraw("status");
  },
  open_steps(told) {
    state.open = told.rows.map((row) => named(state.hello.open_columns, row));
    state.openTotal = told.total;
    runs.takeOpen(state.open);
    redraw("open");
    selectNewest();
  },
  letters(told) {
    state.letters = told.rows;
    redraw("letters");
  },
  runs(told) {
    state.reasons = told.reasons;
    state.totals = told;
    const columns = ["run", "scope", "steps", ...state.hello.step_columns];
    runs.take(told.rows.map((row) => named(columns, row)), told.whole);
    if (told.whole) runs.takeOpen(state.open);
    redraw("about", "closed");
    selectNewest();
  },
  steps(told) {
    if (told.run !== state.selected?.run || told.scope !== state.selected?.scope) return;
    const highest = state.steps.last()?.step ?? -1;
    state.steps.take(told);
    state.hasSteps = true;
    if (state.page && !told.whole) keepPage(told.columns.step.filter((step) => step > highest).length);
    redraw("steps");
  },
};

function named(columns, row) {
  const made = {};
  columns.forEach((name, place) => { made[name] = row[place]; });
  return made;
}

// Where somebody reads older pages they don't move on under the eyes, but by whole pages.
function keepPage(added) {
  state.added = (state.added ?? 0) + added;
  if (state.added >= PAGE) {
    state.page += Math.floor(state.added / PAGE);
    state.added %= PAGE;
  }
}

function selectNewest() {
  if (state.selected) return;
  const newest = runs.newest();
  if (!newest) return;
  history.replaceState(null, "", hashOf(newest.run, newest.scope));
  select({ run: newest.run, scope: newest.scope });
}

addEventListener("hashchange", () => {
  const wanted = fromHash();
  if (wanted && (wanted.run !== state.selected?.run || wanted.scope !== state.selected?.scope)) select(wanted);
});

// --- drawing

function redraw(...what) {
  if (!stale.size) requestAnimationFrame(draw);
  for (const one of what) stale.add(one);
}

function draw() {
  const what = new Set(stale);
  stale.clear();
  const is = (...names) => what.has("all") || names.some((name) => what.has(name));
  if (is("status")) drawStatus();
  if (is("steps", "open", "letters", "status", "about")) drawFrame();
  if (is("steps")) drawRun();
  if (is("steps", "readout")) drawReadout();
  if (is("steps", "ranges")) drawRanges();
  if (is("steps", "closed")) drawClosedSteps();
  if (is("open")) drawOpenSteps();
  if (is("letters")) drawLettersTable();
  if (is("about", "steps")) drawAbout();
}

function drawStatus() {
  const isLost = Date.now() - state.heardAt > LOST_MS;
  const [kind, text] = isLost ? ["lost", state.hello ? "no answer from the sidecar; trying again" : "connecting"]
    : state.trouble ? ["wait", state.trouble]
    : state.share !== null ? ["wait", `reading the results: ${Math.round(state.share * 100)} %`]
    : state.notReady ? ["wait", `not ready: ${state.notReady}`] : ["live", "live"];
  at("status").dataset.state = kind;
  if (at("status-text").textContent !== text) at("status-text").textContent = visible(text);
}

function drawFrame() {
  const hasRun = state.selected !== null;
  at("content").hidden = !hasRun;
  at("empty").hidden = hasRun;
  at("letters-section").hidden = !state.hello;
  if (!hasRun && state.hello) {
    at("empty-text").textContent = state.trouble || state.share !== null ? "The results are being read."
      : `No step has closed. Results are read from the topic ${state.hello.output_topic}, and appear here by themselves.`;
  }
}

function drawRun() {
  if (!state.selected) return;
  const { run, scope } = state.selected;
  const last = state.steps.last();
  at("run").textContent = visible(run);
  at("run").title = visible(run);
  at("scope").textContent = visible(scope);
  at("attempt").hidden = !last || last.attempt === 0;
  if (last) at("attempt").textContent = `attempt ${count(last.attempt)}`;
  document.title = `${visible(run)}${last ? ` · step ${count(last.step)} · ${number(last.by_rollout)}` : ""} · stream_metrics`;
  const figures = [
    ["Step", last ? count(last.step) : "–", ""], ["Reward by rollout", number(last?.by_rollout), "of-rollout"],
    ["Reward by sample", number(last?.by_sample), "of-sample"], ["Gap", last ? gap(last.gap) : "–", ""],
    ["Samples", last ? count(last.samples) : "–", ""], ["Rollouts", last ? count(last.rollouts) : "–", ""],
  ];
  at("figures").replaceChildren(...figures.map(([name, value, kind]) => {
    const group = document.createElement("div");
    const [term, figure] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    figure.textContent = value;
    figure.className = kind;
    group.append(term, figure);
    return group;
  }));
  if (state.hasSteps) chart.show(state.steps);
  at("chart").setAttribute("aria-label", last
    ? `Chart of ${count(state.steps.length)} steps. At step ${count(last.step)}: reward by rollout ${number(last.by_rollout)}, by sample ${number(last.by_sample)}, ${count(last.samples)} samples. The table of closed steps has all numbers.`
    : "Chart without steps");
}

function drawReadout() {
  const row = state.point !== null && state.point < state.steps.length ? state.steps.row(state.point) : state.steps.last();
  const notes = row ? told(row, state.reasons).map(([, , text]) => text) : [];
  at("readout").textContent = row
    ? [`step ${count(row.step)}`, `by rollout ${number(row.by_rollout)}`, `by sample ${number(row.by_sample)}`,
      `gap ${gap(row.gap)}`, `${count(row.samples)} samples of ${count(row.rollouts)} rollouts`, ...notes].join(" · ")
    : "";
}

for (const [name, range] of RANGES) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.dataset.range = range;
  button.title = range === Infinity ? "All steps" : `The newest ${name} steps`;
  button.addEventListener("click", () => { chart.setRange(range); redraw("ranges"); });
  at("ranges").append(button);
}

function drawRanges() {
  for (const button of at("ranges").children) {
    button.setAttribute("aria-pressed", String(!chart.isZoomed && Number(button.dataset.range) === chart.range));
  }
}

function drawClosedSteps() {
  const [from, end, total] = drawClosed(at("closed"), state.steps, state.page, state.reasons);
  at("closed-note").textContent = !total ? "" : total <= PAGE ? `${count(total)}` : `${count(from + 1)} to ${count(end)} of ${count(total)}, newest first`;
  at("newer").disabled = from === 0;
  at("older").disabled = end >= total;
  at("newer").parentElement.hidden = total <= PAGE;
}
const turn = (by) => { state.page = Math.max(0, state.page + by); state.added = 0; redraw("closed"); };
at("newer").addEventListener("click", () => turn(-1));
at("older").addEventListener("click", () => turn(1));

function drawOpenSteps() {
  if (!state.hello) return;
  const shown = drawOpen(at("open"), state.open, state.selected, now(), state.hello.close_grace_seconds, hashOf);
  at("open-note").textContent = state.openTotal > shown
    ? `${count(shown)} of ${count(state.openTotal)} that this replica holds` : "that this replica holds";
}

function drawLettersTable() {
  const shown = drawLetters(at("letters"), state.letters);
  const reasons = new Map();
  for (const letter of state.letters) reasons.set(letter.reason, (reasons.get(letter.reason) ?? 0) + 1);
  const counts = [...reasons].map(([reason, times]) => `${count(times)} ${visible(reason || "without reason")}`).join(", ");
  at("letters-note").textContent = !state.letters.length ? ""
    : `${counts}${shown < state.letters.length ? `; the newest ${count(shown)} shown` : ""}`;
}

function drawAbout() {
  if (!state.hello) return;
  const parts = [`stream_metrics ${state.hello.version}`, `results from the topic ${state.hello.output_topic}`];
  if (state.totals) {
    parts.push(`${count(state.totals.steps)} steps in memory`);
    if (state.totals.forgotten) parts.push(`${count(state.totals.forgotten)} older ones left out`);
    if (state.totals.unreadable) parts.push(`${count(state.totals.unreadable)} records that are no results`);
  }
  at("about").textContent = parts.join(" · ");
}

setInterval(() => {
  redraw("open", "status");
  runs.draw();
}, 1000);

applyTheme();
select(fromHash());
