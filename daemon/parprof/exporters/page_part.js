// The part of the whole that is looked at: a span of time, a thread, or both; all views are of it.
const part = {
  from: 0, to: 0, thread: -1,
  // Intervals with what each node has in them. Big, so read when first asked for.
  get shares() {
    if (this._shares) return this._shares;
    const shares = JSON.parse(byId("shares").textContent), starts = [0];
    for (const size of shares.sizes) starts.push(starts.at(-1) + size);
    const last = shares.intervals.at(-1);
    return this._shares = {...shares, starts, isTimed: last !== undefined && last[1] > 0 && shares.intervals.length > 1};
  },
  get isWhole() { return this.to <= this.from && this.thread < 0; },
  get isSpan() { return this.to > this.from; },
  get ends() {  // microseconds
    const {intervals} = this.shares;
    return this.isSpan ? [intervals[this.from][0], intervals[this.to - 1][1]] : [intervals[0][0], intervals.at(-1)[1]];
  },
  // Intervals from a begin to an end; none for all of the time. Everything is charged anew.
  set({from, to, thread}) {
    if (from === this.from && to === this.to && thread === this.thread) return false;
    Object.assign(this, {from, to, thread});
    if (this.isWhole) charge(nodes.own, total); else charge(this._own());
    flatMade = callersMade = invertedMade = null;
    return true;
  },
  _own() {
    const {starts, nodes: places, threads: owners, values, intervals} = this.shares, {thread} = this;
    const begin = starts[this.isSpan ? this.from : 0], end = starts[this.isSpan ? this.to : intervals.length];
    const columns = {};
    for (const {name, combine} of metrics) {
      const column = values[name], mine = columns[name] = new Float64Array(count), add = combiners[combine] ?? combiners.max;
      if (!column) continue;
      for (let at = begin; at < end; at++) {
        if (column[at] && (thread < 0 || owners[at] === thread)) mine[places[at]] = add(mine[places[at]], column[at]);
      }
    }
    return columns;
  },
  // Which intervals a span in seconds is, as an address has it.
  spanOf(from, to) {
    const {intervals, isTimed} = from === null && to === null ? {} : this.shares;
    if (!isTimed) return [0, 0];
    const nearest = (seconds, end) => intervals.reduce((best, one, at) =>
      Math.abs(one[end] / 1e6 - seconds) < Math.abs(intervals[best][end] / 1e6 - seconds) ? at : best, 0);
    const first = nearest(Number(from) || 0, 0), last = to === null ? intervals.length - 1 : nearest(Number(to) || 0, 1);
    return [first, Math.max(first, last) + 1];
  },
  // Mean n_w of some intervals; NaN where it is not known.
  working(from, to) {
    let area = 0, took = 0;
    for (const [begin, end, levels] of this.shares.intervals.slice(from, to)) {
      levels.forEach((time, n_w) => { area += n_w * time; });
      took += levels.length ? end - begin : 0;
    }
    return took ? area / took : NaN;
  },
};

// What can be said of the part, above the views.
const partAnswer = {
  show() {
    const box = byId("part");
    box.hidden = part.isWhole;
    if (part.isWhole) return;
    const button = (textContent, action) => {
      const one = made("button", {type: "button", textContent});
      one.onclick = action;
      return one;
    };
    const told = ["work", "idleness", "overhead"].filter(key => METRICS[key].of(ofTotal))
      .map(key => `${METRICS[key].label} ${percent(METRICS[key].of(ofTotal))} %`);
    if (ofTotal("stall")) told.push(`nobody working ${percent(ofTotal("stall"))} %`);
    const {isTimed} = part.shares, mean = part.thread < 0 && isTimed ? part.working(part.from, part.to) : NaN;
    if (!Number.isNaN(mean)) told.push(`${mean.toFixed(2)} threads at work on average, of ${cores} cores`);
    told.push(`${ofTotal("samples").toLocaleString("en")} samples`);
    const sites = made("ol");
    for (const {node, share, idle} of this._sites()) {
      const line = node ? nodes.line[node] : 0, procedure = nodes.procedure[node];
      const link = button(node ? nameOf(procedure) : "outside the program's own code",
                          () => change({tab: state.tab === "threads" ? "threads" : "flame", shape: "icicle", by: "lost", zoomed: itemOf(node)}));
      sites.append(made("li", {}, link, ` ${node ? whereOf(procedure, line) : ""} loses ${share} %, ${idle} of ${cores} cores idle while it runs`));
    }
    box.replaceChildren(made("b", {textContent: this.title()}), " ", button("whole run", () => change({from: 0, to: 0, thread: -1})),
                        made("small", {textContent: told.join(" · ")}), sites);
  },
  title() {
    const parts = [];
    if (part.isSpan) {
      const [from, to] = part.ends, [, end] = part.shares.intervals.at(-1), s = value => (value / 1e6).toFixed(2);
      parts.push(`${s(from)} to ${s(to)} s of ${s(end)} s`);
    }
    if (part.thread >= 0) parts.push(`thread ${threads.rows[part.thread][0]}`);
    return parts.join(", ");
  },
  // The program's functions that lose most, each with the call path that has most of it.
  _sites() {
    const lost = at => METRICS.lost.of(name => own[name]?.[at] ?? 0), groups = new Map();
    const inProgram = this._inProgram ??= this._findProgram();
    for (let at = 1; at < count; at++) {
      const value = lost(at);
      if (!(value > 0)) continue;
      const node = inProgram[at], procedure = node ? nodes.procedure[node] : 0;
      if (!groups.has(procedure)) groups.set(procedure, {value: 0, idle: 0, effort: 0, places: new Map()});
      const group = groups.get(procedure);
      group.value += value;
      group.idle += own.idleness[at] + own.stall[at];
      group.effort += effort(name => own[name]?.[at] ?? 0);
      group.places.set(node, (group.places.get(node) ?? 0) + value);
    }
    return [...groups.values()].filter(({value}) => value >= all / 100).sort((a, b) => b.value - a.value).slice(0, 5)
      .map(({value, idle, effort, places}) => ({
        node: [...places].reduce((a, b) => a[1] >= b[1] ? a : b)[0], share: percent(value),
        idle: (effort ? cores * idle / effort : 0).toFixed(1),
      }));
  },
  _findProgram() {
    const inProgram = new Int32Array(count), program = owners.indexOf("program");
    for (let at = 1; at < count; at++) {
      inProgram[at] = procedures.owner[nodes.procedure[at]] === program ? functionNode[at] : inProgram[nodes.parent[at]];
    }
    return inProgram;
  },
};
