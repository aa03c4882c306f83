// The tree as a table: call paths, callers, or functions. Only rows in sight are in the page.
const table = {
  rows: new Rows(byId("rows"), 23, "tree"), open: {paths: new Set(), callers: new Set(), flat: new Set()},
  shown: [], selected: null,

  columns() {
    if (this._columns) return this._columns;
    const share = (key, name, from) => ({
      key: `${key}.${from}`, label: `${name} % ${from === "own" ? "itself" : "with callees"}`,
      of: item => METRICS[key].of(item[from]), text: value => percent(value, 2),
    });
    const columns = [
      share("idleness", "idleness", "inclusive"), share("idleness", "idleness", "own"),
      share("work", "useful work", "inclusive"), share("work", "useful work", "own"),
      share("overhead", "overhead", "own"),
    ];
    for (const metric of metrics) {
      if (metric.effort || !metric.column || metric.name !== "spin" && !ofTotal(metric.name)) continue;
      const digits = {...metric, unit: ""};
      columns.push({
        key: `${metric.name}.own`, label: `${metric.label} ${metric.unit} itself`.replace("  ", " "),
        of: item => item.own(metric.name), text: value => amount(digits, value),
      });
    }
    columns.push({key: "samples.own", label: "samples itself", of: item => item.own("samples"),
                  text: value => value.toLocaleString("en")});
    columns.push({key: "gain", label: "times as fast, at best, if fixed", of: item => gainOf(item.inclusive), text: gainText});
    columns.push({key: "verdict", label: "verdict with callees", of: item => -verdictOf(item), text: null});
    return this._columns = columns;
  },

  head() {
    const cells = [made("th", {scope: "col"}, this._heading("function", "name"))];
    for (const {key, label} of this.columns()) cells.push(made("th", {scope: "col"}, this._heading(label, key)));
    cells.forEach((cell, at) => {
      const key = at ? this.columns()[at - 1].key : "name";
      if (state.sort === key) cell.setAttribute("aria-sort", state.up ? "ascending" : "descending");
    });
    this.rows.head.replaceChildren(made("tr", {}, ...cells));
    this.rows.table.setAttribute("role", state.view === "flat" ? "grid" : "treegrid");
    this.rows.table.style.minWidth = 16 + 6 * this.columns().length + "rem";
  },
  _heading(label, key) {
    const button = made("button", {type: "button", textContent: label});
    button.onclick = () => change({sort: key, up: state.sort === key ? !state.up : key === "name"});
    return button;
  },

  layout() {
    this.head();
    const {view} = state, open = this.open[view];
    const tops = view === "paths" ? [wholeProcess] : view === "callers" ? callerRows() : flatRows();
    if (view === "paths" && !open.size) this._unfoldHottest();
    const out = [], pending = this._sorted(tops).reverse();
    while (pending.length) {
      const item = pending.pop();
      out.push(item);
      if (!open.has(item.key)) continue;
      const children = this._sorted(item.children);
      for (let at = children.length - 1; at >= 0; at--) pending.push(children[at]);
    }
    this.shown = view === "flat" && search.procedures ? out.filter(item => search.has(item.procedure)) : out;
    this.rows.show(this.shown, (item, at) => this._row(item, at));
  },
  // As far as one call path has most of what is looked at.
  _unfoldHottest() {
    const value = item => METRICS[state.by].of(item.inclusive);
    for (let item = wholeProcess; item && item.depth < 40;) {
      this.open.paths.add(item.key);
      const largest = item.children.reduce((a, b) => a && value(a) >= value(b) ? a : b, null);
      if (!largest || value(largest) < 0.3 * value(item)) break;
      item = largest;
    }
  },
  _sorted(items) {
    const column = this.columns().find(({key}) => key === state.sort), sign = state.up ? -1 : 1;
    const keys = new Map(items.map(item => [item, column ? column.of(item) : nameOf(item.procedure)]));
    const compare = column ? (a, b) => keys.get(b) - keys.get(a) : (a, b) => keys.get(b).localeCompare(keys.get(a));
    return [...items].sort((a, b) => sign * compare(a, b));
  },

  _row(item, at) {
    const name = made("span", {className: "name", textContent: nameOf(item.procedure)});
    if (search.has(item.procedure)) name.classList.add("match");
    const owner = made("i", {className: `owner ${owners[procedures.owner[item.procedure]]}`});
    const cell = made("td", {title: nameOf(item.procedure).slice(0, 500)}, owner, name,
                      made("small", {textContent: ` ${whereOf(item.procedure, item.line)}`}));
    if (!item.leaf) {
      const isOpen = this.open[state.view].has(item.key);
      const fold = made("button", {type: "button", className: "fold", textContent: isOpen ? "▾" : "▸", tabIndex: -1});
      fold.setAttribute("aria-label", isOpen ? "fold" : "unfold");
      fold.onclick = event => { event.stopPropagation(); this.toggle(at); };
      cell.prepend(fold);
    } else cell.prepend(made("span", {className: "fold"}));
    cell.style.paddingLeft = 0.3 + 0.9 * Math.min(item.depth, 60) + "rem";
    const row = made("tr", {}, cell);
    for (const column of this.columns()) {
      const value = column.of(item);
      row.append(made("td", {textContent: column.text ? column.text(value) : verdicts[-value]}));
    }
    row.setAttribute("aria-rowindex", at + 1);
    row.setAttribute("aria-level", item.depth + 1);
    if (!item.leaf) row.setAttribute("aria-expanded", this.open[state.view].has(item.key));
    if (item.key === this.selected) row.setAttribute("aria-selected", "true");
    row.onclick = () => this.select(at);
    row.ondblclick = () => change({tab: "flame", shape: "icicle", zoomed: itemOf(item.node)});
    return row;
  },
  toggle(at, wanted) {
    const open = this.open[state.view], {key, leaf} = this.shown[at];
    if (leaf) return;
    if (wanted ?? !open.has(key)) open.add(key); else open.delete(key);
    this.layout();
  },
  select(at) {
    this.selected = this.shown[at].key;
    this.rows.reveal(at);
    describe(this.shown[at]);
  },
  // Unfolds the way to a node.
  show(node) {
    for (let at = nodes.parent[node]; at >= 0; at = nodes.parent[at]) this.open.paths.add(keyOf(at));
    this.selected = keyOf(node);
    this.layout();
    const at = this.shown.findIndex(item => item.key === this.selected);
    if (at >= 0) this.rows.reveal(at);
  },
  move(key) {
    const at = this.shown.findIndex(item => item.key === this.selected), item = this.shown[at];
    if (!item) return this.shown.length ? this.select(0) : undefined;
    const isOpen = this.open[state.view].has(item.key);
    if (key === "ArrowUp" && at > 0) this.select(at - 1);
    if (key === "ArrowDown" && at + 1 < this.shown.length) this.select(at + 1);
    if (key === "ArrowRight" && !item.leaf) isOpen ? this.select(at + 1) : this.toggle(at, true);
    if (key === "ArrowLeft") {
      if (isOpen && !item.leaf) this.toggle(at, false);
      else if (item.up) this.select(this.shown.indexOf(item.up));
    }
    if (key === "Enter") this.toggle(at);
  },
};
// Table 1 of the paper, as parprof.attribution.effort has it for the whole run.
function judged(m) {
  const whole = effort(m);
  if (!whole) return "unknown";
  const isHigh = METRICS.overhead.of(m) >= whole / 10;
  if (m("idleness") + m("stall") >= whole / 10) return isHigh ? "switch strategy" : "refine";
  return isHigh ? "coarsen" : "effectively parallel";
}
function verdictOf(item) {
  if (!part.isWhole) {
    while (item instanceof Callers && item.up && item.up.procedure) item = item.up;
    return verdicts.indexOf(judged(item.inclusive));
  }
  if (item instanceof Callees && item.nodes.length === 1) return nodes.verdict[item.node];
  while (item.up && item.up.procedure) item = item.up;
  if (!item.procedure) return nodes.verdict[0];
  return procedures.verdict[item.procedure];
}
