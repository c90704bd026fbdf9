// The chart: reward by rollout beside reward by sample, and under it the samples of each step, on one axis of steps.

import { CORRECTED, INCOMPLETE } from "./steps.js";

const HEIGHT = 252;
const SAMPLES_HEIGHT = 96;
const AXIS = 58;
const BARS_UP_TO = 300;
const DASHES_UP_TO = 2000; // a dashed line of very many points takes seconds to draw
const DASH = [6, 4];
const MARK = 6;
const STEPS = [1, 2, 5].flatMap((digit) => Array.from({ length: 15 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);

export const RANGES = [["50", 50], ["500", 500], ["5,000", 5000], ["all", Infinity]];

export class Chart {
  // place: the element it lives in; onPoint: called with a place in the steps, or null when the pointer has left;
  // onZoom: called when somebody chose a range by hand.
  constructor(place, onPoint, onZoom) {
    this.place = place;
    this.onPoint = onPoint;
    this.onZoom = onZoom;
    this.steps = null;
    this.range = Infinity;
    this.isZoomed = false;
    this.plots = [];
    this.width = 0;
    new ResizeObserver(() => this.resize()).observe(place);
  }

  show(steps) {
    this.steps = steps;
    if (!this.plots.length) this.make();
    const { step, by_rollout, by_sample, samples } = steps.columns;
    const view = this.isZoomed ? this.plots[0].scales.x : this.view();
    const span = { min: view.min, max: view.max };
    this.plots[0].series[2].dash = steps.place(view.max) - steps.place(view.min) > DASHES_UP_TO ? [] : DASH;
    const data = [[step, by_rollout, by_sample], [step, samples]];
    this.plots.forEach((plot, number) => plot.batch(() => {
      plot.setData(data[number], false);
      plot.setScale("x", span);
    }));
  }

  // Shows the newest steps, so many of them.
  setRange(range) {
    this.range = range;
    this.isZoomed = false;
    if (this.steps) this.show(this.steps);
  }

  view() {
    const steps = this.steps.columns.step;
    const from = Math.max(0, steps.length - this.range);
    return { min: (steps[from] ?? 0) - 0.5, max: (steps[steps.length - 1] ?? 0) + 0.5 };
  }

  // Takes on the colours that the page has now.
  recolour() {
    if (!this.plots.length) return;
    for (const plot of this.plots) plot.destroy();
    this.plots = [];
    if (this.steps) this.show(this.steps);
  }

  resize() {
    const width = this.place.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    this.plots.forEach((plot, number) => plot.setSize({ width, height: number ? SAMPLES_HEIGHT : HEIGHT }));
  }

  make() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.width = this.place.clientWidth || 600;
    const axis = { stroke: colour("dim"), font: `12px ${getComputedStyle(document.body).fontFamily}`,
      grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    const common = {
      width: this.width,
      legend: { show: false },
      padding: [8, 10, 0, 0],
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "steps", scales: ["x", null] },
        bind: { dblclick: () => () => this.setRangeByHand() } },
      hooks: { setCursor: [(plot) => this.onPoint(plot.cursor.idx ?? null)], setSelect: [(plot) => this.zoom(plot)] },
    };
    const x = { ...axis, incrs: STEPS, space: 60, values: (_, items) => items.map((item) => item.toLocaleString("en")) };
    const points = { show: (_, __, from, to) => to - from <= 60, size: 5 };
    this.plots = [
      new uPlot({
        ...common, height: HEIGHT,
        scales: { x: { time: false }, y: { range: padded } },
        axes: [{ ...x, size: 8, values: (_, items) => items.map(() => "") }, { ...axis, size: AXIS }],
        series: [{}, { stroke: colour("rollout"), width: 2, points: { ...points, fill: colour("rollout") } },
          { stroke: colour("sample"), width: 1.75, dash: DASH, points: { show: false } }],
        hooks: { ...common.hooks, draw: [(plot) => this.mark(plot, colour)] },
      }, [[], [], []], this.place),
      new uPlot({
        ...common, height: SAMPLES_HEIGHT,
        scales: { x: { time: false }, y: { range: (_, __, max) => [0, Math.max(1, max * 1.08)] } },
        axes: [{ ...x, size: 26 }, { ...axis, size: AXIS, space: 26, incrs: STEPS, values: (_, items) => items.map(compact) }],
        series: [{}, { stroke: colour("count"), fill: colour("count"), width: 0, points: { show: false }, paths: bars }],
      }, [[], []], this.place),
    ];
  }

  zoom(plot) {
    if (plot.select.width < 1) return;
    const min = plot.posToVal(plot.select.left, "x");
    const max = plot.posToVal(plot.select.left + plot.select.width, "x");
    this.isZoomed = true;
    for (const one of this.plots) {
      one.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      one.setScale("x", { min, max });
    }
    this.onZoom(true);
  }

  setRangeByHand() {
    this.setRange(this.range);
    this.onZoom(false);
  }

  // Corrected and incomplete steps have a shape of their own, so that it needs no colour to tell them.
  mark(plot, colour) {
    const { step, by_rollout, flags } = this.steps.columns;
    if (!step) return;
    const [from, to] = [this.steps.place(plot.scales.x.min), this.steps.place(plot.scales.x.max)];
    const size = MARK * devicePixelRatio;
    const { ctx } = plot;
    ctx.save();
    ctx.lineJoin = "round";
    for (let place = from; place < Math.min(to, step.length); place++) {
      if (!flags[place] || by_rollout[place] === null) continue;
      const x = plot.valToPos(step[place], "x", true);
      const y = plot.valToPos(by_rollout[place], "y", true);
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.strokeStyle = colour("card");
      if (flags[place] & INCOMPLETE) shape(ctx, colour("incomplete"), [[x, y - size * 1.2], [x + size * 1.1, y + size * 0.9], [x - size * 1.1, y + size * 0.9]]);
      else if (flags[place] & CORRECTED) shape(ctx, colour("corrected"), [[x, y - size * 1.15], [x + size, y], [x, y + size * 1.15], [x - size, y]]);
    }
    ctx.restore();
  }
}

function shape(ctx, fill, corners) {
  ctx.fillStyle = fill;
  ctx.beginPath();
  corners.forEach(([x, y], number) => (number ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.closePath();
  ctx.fill();
  ctx.stroke();
}

function padded(_, min, max) {
  if (min === null) return [0, 1];
  const room = (max - min || Math.abs(max) || 1) * 0.1;
  return [min - room, max + room];
}

function bars(plot, series, from, to, ...rest) {
  const draw = to - from > BARS_UP_TO ? uPlot.paths.linear() : uPlot.paths.bars({ size: [0.72, 28] });
  return draw(plot, series, from, to, ...rest);
}

function compact(value) {
  return value >= 1e6 ? `${value / 1e6}M` : value >= 1e4 ? `${value / 1e3}k` : value.toLocaleString("en");
}
