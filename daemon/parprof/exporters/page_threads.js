// What each thread did, and how many worked: over time where that is known, a strip each; else in all.
const THREAD_KINDS = [
  ["useful", "useful work", m => Math.max(0, m("work") - m("overhead"))], ["overhead", "overhead", m => m("overhead")],
  ["spin", "spin", m => m("spin")], ["ready", "waiting for a CPU", m => m("ready")],
  ["wait", "asleep", m => m("wait")],
];
const LEVEL_KINDS = [["useful", "cores at work"], ["idleness", "idle cores"], ["stall", "nobody works"]];
const threadView = {
  lanes: [],
  layout() {
    if (!this.made) this._make();
    if (this.width !== this._width()) this._paint();
    this.mark();
  },
  _make() {
    this.made = true;
    const {isTimed} = part.shares;
    const rows = threads.rows.map(([name, values]) => {
      const numbers = Object.fromEntries(metrics.map((metric, column) => [metric.name, values[column]]));
      const of = key => numbers[key] ?? 0;
      return {name, parts: THREAD_KINDS.map(([, , value]) => value(of)), idle: of("idleness") + of("stall")};
    });
    const most = Math.max(1, ...rows.map(({parts}) => parts.reduce((a, b) => a + b, 0)));
    const seconds = value => `${(value / 1e6).toFixed(2)} s`;
    const isSeen = amount => amount >= most / 2000;
    const known = THREAD_KINDS.filter((_, kind) => rows.some(({parts}) => isSeen(parts[kind])));
    const sample = ([kind, label]) => made("span", {}, made("i", {className: kind}), ` ${label}`);
    const levels = isTimed ? LEVEL_KINDS.filter(([kind]) => kind === "idleness" || kind === "stall" && this._stalls()) : [];
    byId("kinds").replaceChildren(...levels.map(sample), ...known.map(sample),
                                  made("span", {textContent: "idle: core time idle while it worked"}));
    const times = isTimed ? this._times(rows.length) : [];
    const lines = rows.map(({name, parts, idle}, thread) => {
      const told = THREAD_KINDS.flatMap(([, label], at) => isSeen(parts[at]) ? [`${label} ${seconds(parts[at])}`] : []);
      const strip = isTimed ? this._lane(times[thread], THREAD_KINDS.map(([kind]) => kind)) : made("div", {className: "strip"});
      if (!isTimed) {
        THREAD_KINDS.forEach(([kind, label], at) => {
          if (!isSeen(parts[at])) return;
          const bar = made("i", {className: kind, title: `${label} ${seconds(parts[at])}`});
          bar.style.width = 100 * parts[at] / most + "%";
          strip.append(bar);
        });
      }
      strip.setAttribute("role", "img");
      strip.setAttribute("aria-label", told.join(", "));
      const who = made("button", {type: "button", className: "who", textContent: name, title: `only ${name}`});
      who.onclick = () => change({thread: state.thread === thread ? -1 : thread});
      return made("div", {className: "thread"}, who, strip,
                  made("small", {textContent: [...told, `idle ${seconds(idle)}`].join(", ")}));
    });
    byId("strips").replaceChildren(...(isTimed ? [this._levels()] : []), ...lines);
    if (!rows.length) byId("strips").textContent = "There are no samples of threads.";
    if (threads.more) byId("strips").append(made("p", {className: "faint", textContent: `${threads.more} more threads did less.`}));
    byId("untimed").hidden = isTimed || !rows.length;
    if (isTimed) {
      this.marked = made("div", {className: "span"});
      byId("strips").append(this.marked);
      this._brush();
    }
  },
  // n_w of the whole job, as what its cores did.
  _levels() {
    const {intervals} = part.shares;
    const sampled = this._sampled();
    const columns = intervals.map(([begin, end, levels], at) => {
      const took = Math.max(end - begin, 1);
      if (!levels.length) return sampled[at].map(value => value / took / cores);
      const busy = levels.reduce((sum, time, n_w) => sum + Math.min(n_w, cores) * time, 0) / took / cores;
      const nobody = (levels[0] ?? 0) / took;
      const known = levels.reduce((sum, time) => sum + time, 0) / took;
      return [busy, Math.max(known - busy - nobody, 0), nobody];
    });
    const strip = this._lane(columns, LEVEL_KINDS.map(([kind]) => kind));
    strip.classList.add("levels-lane");
    strip.id = "time";
    strip.tabIndex = 0;
    strip.setAttribute("role", "slider");
    strip.setAttribute("aria-label", "span of time; arrows move it, with Shift its end, Escape shows the whole run");
    strip.setAttribute("aria-valuemin", 0);
    strip.setAttribute("aria-valuemax", intervals.length);
    return made("div", {className: "thread"}, made("span", {className: "job", textContent: `${this._areLevelsKnown() ? "threads at work (n_w)" : "cores at work, as sampled"}, ${cores} core${cores === 1 ? "" : "s"}`}),
                strip, made("small", {id: "when", textContent: "drag to choose a span"}));
  },
  _areLevelsKnown() { return part.shares.intervals.some(([, , levels]) => levels.length); },
  _stalls() { return ofTotal("stall") > 0 || part.shares.intervals.some(([, , [nobody]]) => nobody > 0); },
  // Core time at work, idle and stalled in each interval, as samples have it: the daemon keeps no times by n_w.
  _sampled() {
    const {intervals, starts, values} = part.shares;
    return intervals.map((_, at) => ["work", "idleness", "stall"].map(name =>
      (values[name] ?? []).slice(starts[at], starts[at + 1]).reduce((a, b) => a + b, 0)));
  },
  // By thread and interval: what share of the time it did what.
  _times(number) {
    const {intervals, starts, nodes: places, threads: owners, values} = part.shares;
    const out = Array.from({length: number}, () => intervals.map(() => THREAD_KINDS.map(() => 0)));
    let at = 0;
    const value = key => values[key]?.[at] ?? 0;
    intervals.forEach(([begin, end], interval) => {
      for (at = starts[interval]; at < starts[interval + 1]; at++) {
        const column = out[owners[at]]?.[interval];
        if (column) THREAD_KINDS.forEach(([, , of], kind) => { column[kind] += of(value); });
      }
      for (const thread of out) {  // sampled, so it may be a little more than the time
        const column = thread[interval], whole = Math.max(end - begin, 1, column.reduce((a, b) => a + b, 0));
        column.forEach((amount, kind) => { column[kind] = amount / whole; });
      }
    });
    return out;
  },
  _lane(columns, kinds) {
    const canvas = made("canvas"), strip = made("div", {className: "strip lane"}, canvas);
    this.lanes.push({canvas, strip, columns, kinds});
    return strip;
  },
  _width() { return this.lanes.length ? this.lanes[0].strip.clientWidth : 0; },
  _paint() {
    this.width = this._width();
    if (!this.width) return;
    const {intervals} = part.shares, [first, last] = [intervals[0][0], intervals.at(-1)[1]], dots = devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement), width = Math.round(this.width * dots);
    const edges = intervals.map(([...ends]) => ends.slice(0, 2).map(time => Math.round(width * (time - first) / (last - first))));
    for (const {canvas, strip, columns, kinds} of this.lanes) {
      const height = Math.round(strip.clientHeight * dots), colours = kinds.map(kind => style.getPropertyValue(`--${kind}`));
      Object.assign(canvas, {width, height});
      const pen = canvas.getContext("2d");
      columns.forEach((parts, at) => {
        let bottom = height;
        parts.forEach((share, kind) => {
          if (!(share > 0)) return;
          pen.fillStyle = colours[kind];
          pen.fillRect(edges[at][0], bottom - share * height, edges[at][1] - edges[at][0], share * height);
          bottom -= share * height;
        });
      });
    }
  },
  repaint() { if (this.made && part.shares.isTimed) this._paint(); },
  // Marks a span of intervals, by default the one that is chosen.
  mark(from = part.from, to = part.to) {
    [...byId("strips").querySelectorAll("button.who")].forEach((who, thread) =>
      who.setAttribute("aria-pressed", thread === part.thread));
    if (!this.marked) return;
    const {intervals} = part.shares, [first, last] = [intervals[0][0], intervals.at(-1)[1]];
    this.marked.hidden = to <= from;
    const time = byId("time"), scale = this.width / (last - first);
    time.setAttribute("aria-valuenow", from);
    time.setAttribute("aria-valuetext", to > from ? partAnswer.title() : "whole run");
    if (to <= from) return;
    this.marked.style.left = time.offsetLeft + (intervals[from][0] - first) * scale + "px";
    this.marked.style.width = (intervals[to - 1][1] - intervals[from][0]) * scale + "px";
  },
  _at(event) {
    const {intervals} = part.shares, [first, last] = [intervals[0][0], intervals.at(-1)[1]];
    const box = byId("time").getBoundingClientRect();
    const when = first + (last - first) * Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    const at = intervals.findIndex(([, end]) => when < end);
    return at < 0 ? intervals.length - 1 : at;
  },
  _brush() {
    const strips = byId("strips");
    let from = null;
    strips.onpointerdown = event => {
      if (event.button || !event.target.closest(".lane")) return;
      event.preventDefault();
      byId("time").focus({preventScroll: true});
      strips.setPointerCapture(event.pointerId);
      from = this._at(event);
      this.mark(from, from + 1);
    };
    strips.onpointermove = event => {
      const to = this._at(event), [begin, end] = part.shares.intervals[to], mean = part.working(to, to + 1);
      byId("when").textContent = `${(begin / 1e6).toFixed(2)} to ${(end / 1e6).toFixed(2)} s` +
        (Number.isNaN(mean) ? "" : `: ${mean.toFixed(2)} at work`);
      if (from !== null) this.mark(Math.min(from, to), Math.max(from, to) + 1);
    };
    strips.onpointerup = event => {
      if (from === null) return;
      const to = this._at(event);
      change({from: Math.min(from, to), to: Math.max(from, to) + 1});
      from = null;
    };
    strips.onpointercancel = () => { from = null; this.mark(); };
    byId("time").onkeydown = event => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key], {length} = part.shares.intervals;
      if (!step) return;
      event.preventDefault();
      let {from, to} = state;
      if (to <= from) [from, to] = step > 0 ? [0, 1] : [length - 1, length];
      else if (event.shiftKey) to = Math.min(Math.max(to + step, from + 1), length);
      else if (from + step >= 0 && to + step <= length) [from, to] = [from + step, to + step];
      change({from, to}, false);
    };
  },
};
