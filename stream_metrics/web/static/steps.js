// The closed steps of the selected run, in columns ordered by step, as the stream sends them.

export const CORRECTED = 1;
export const INCOMPLETE = 2;

export class Steps {
  constructor() {
    this.columns = {};
  }

  get length() {
    return this.columns.step ? this.columns.step.length : 0;
  }

  // Takes a message of the stream: everything anew, or rows that come new or in place of older ones.
  take({ whole, columns }) {
    if (whole || !this.length) {
      this.columns = columns;
      return;
    }
    const names = Object.keys(columns);
    if (columns.step.length && columns.step[columns.step.length - 1] < this.columns.step[0]) { // older ones, in one go
      for (const name in this.columns) this.columns[name] = columns[name].concat(this.columns[name]);
      return;
    }
    for (let row = 0; row < columns.step.length; row++) {
      const place = this.place(columns.step[row]);
      const isThere = this.columns.step[place] === columns.step[row];
      for (const name of names) {
        const column = this.columns[name];
        if (!column) continue; // a column of a newer server
        if (isThere) column[place] = columns[name][row];
        else if (place === column.length) column.push(columns[name][row]);
        else column.splice(place, 0, columns[name][row]);
      }
    }
  }

  // The place of a step, or where it would be.
  place(step) {
    const steps = this.columns.step || [];
    if (!steps.length || steps[steps.length - 1] < step) return steps.length;
    let low = 0;
    let high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  row(place) {
    const row = {};
    for (const name in this.columns) row[name] = this.columns[name][place];
    row.gap = row.by_sample === null || row.by_rollout === null ? null : row.by_sample - row.by_rollout;
    return row;
  }

  last() {
    return this.length ? this.row(this.length - 1) : null;
  }
}
