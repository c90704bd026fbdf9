// The list of runs: searchable, newest result first, and only the rows in sight are in the document.

import { number, shortAge, visible } from "./text.js";

const ROW = 46;
const AROUND = 4;

export class Runs {
  constructor(list, search, countPlace, onSelect, now) {
    this.list = list;
    this.space = list.firstElementChild;
    this.search = search;
    this.countPlace = countPlace;
    this.onSelect = onSelect;
    this.now = now;
    this.byKey = new Map();
    this.order = [];
    this.active = 0;
    this.selected = null;
    list.addEventListener("scroll", () => this.draw(), { passive: true });
    list.addEventListener("keydown", (event) => this.key(event));
    list.addEventListener("click", (event) => {
      const row = event.target.closest(".run");
      if (row) this.choose(Number(row.dataset.place));
    });
    search.addEventListener("input", () => {
      this.active = 0;
      list.scrollTop = 0;
      this.arrange();
    });
    search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") {
        event.preventDefault();
        if (event.key === "Enter") this.choose(0);
        list.focus();
      }
    });
    new ResizeObserver(() => this.draw()).observe(list);
  }

  // rows: objects with run, scope, step, by_rollout, closed_unix_s; those of open steps only have no step yet.
  take(rows, isWhole) {
    if (isWhole) this.byKey.clear();
    for (const row of rows) {
      const key = keyOf(row.run, row.scope);
      const shown = visible(row.run);
      this.byKey.set(key, { ...row, key, shown, text: `${row.run}\n${row.scope}`.toLowerCase() });
    }
    this.arrange();
  }

  // A run that has only open steps so far is in the list too.
  takeOpen(rows) {
    const isNew = (row) => !this.byKey.has(keyOf(row.run, row.scope));
    const added = rows.filter(isNew).map((row) => ({ run: row.run, scope: row.scope, step: null, by_rollout: null,
      closed_unix_s: Math.floor((row.last_unix_ms ?? -1000) / 1000) }));
    if (added.length) this.take(added, false);
  }

  select(run, scope) {
    this.selected = keyOf(run, scope);
    this.draw();
  }

  newest() {
    return this.order.find((row) => row.step !== null) ?? this.order[0] ?? null;
  }

  arrange() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const activeKey = this.order[this.active]?.key;
    this.order = [...this.byKey.values()].filter((row) => words.every((word) => row.text.includes(word)));
    this.order.sort((a, b) => b.closed_unix_s - a.closed_unix_s || (a.text < b.text ? -1 : 1));
    const place = this.order.findIndex((row) => row.key === activeKey);
    this.active = Math.max(0, place);
    const all = this.byKey.size.toLocaleString("en");
    this.countPlace.textContent = words.length ? `${this.order.length.toLocaleString("en")} of ${all}` : all;
    this.space.style.height = `${this.order.length * ROW}px`;
    this.draw();
  }

  draw() {
    const from = Math.max(0, Math.floor(this.list.scrollTop / ROW) - AROUND);
    const to = Math.min(this.order.length, from + Math.ceil(this.list.clientHeight / ROW) + 2 * AROUND);
    const rows = [];
    for (let place = from; place < to; place++) rows.push(this.row(place));
    this.space.replaceChildren(...rows);
    const active = rows[this.active - from];
    if (active) this.list.setAttribute("aria-activedescendant", active.id);
    else this.list.removeAttribute("aria-activedescendant");
  }

  row(place) {
    const run = this.order[place];
    const row = document.createElement("div");
    row.className = place === this.active ? "run active" : "run";
    row.id = `run-${place}`;
    row.dataset.place = place;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(run.key === this.selected));
    row.setAttribute("aria-setsize", this.order.length);
    row.setAttribute("aria-posinset", place + 1);
    row.style.top = `${place * ROW}px`;
    const seconds = this.now() / 1000 - run.closed_unix_s;
    const ago = run.closed_unix_s < 0 ? "" : `${shortAge(seconds)} ago`;
    const scope = run.scope === "rollout" ? "" : `${visible(run.scope)} · `;
    row.append(
      part("name", run.shown.slice(0, 200)),
      part("value", number(run.by_rollout)),
      part("more", scope + (run.step === null ? "no step closed yet" : `step ${run.step.toLocaleString("en")}`)),
      part("more", ago),
    );
    row.title = `${run.shown} · ${visible(run.scope)}`;
    return row;
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / ROW) - 1);
    const to = { ArrowDown: this.active + 1, ArrowUp: this.active - 1, PageDown: this.active + page,
      PageUp: this.active - page, Home: 0, End: this.order.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.choose(this.active);
    else if (to === undefined) return;
    else this.activate(to);
    event.preventDefault();
  }

  activate(place) {
    this.active = Math.min(Math.max(0, place), Math.max(0, this.order.length - 1));
    const top = this.active * ROW;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
    this.draw();
  }

  choose(place) {
    const run = this.order[place];
    if (!run) return;
    this.active = place;
    this.onSelect(run.run, run.scope);
  }
}

export const keyOf = (run, scope) => JSON.stringify([run, scope]);

function part(name, text) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  return made;
}
