// The flame graph: laid out when what it shows changes, painted row by row as far as it is in sight.
const ROW = 20, LEAST_PIXELS = 0.5;
const flame = {
  chart: byId("chart"), scroller: byId("scroller"), space: byId("space"),
  boxes: [], hovered: null, selected: null,

  layout() {
    const value = item => METRICS[state.by].of(item.inclusive), width = this.width = this.scroller.clientWidth;
    const rows = new Map();
    const put = box => { if (rows.has(box.row)) rows.get(box.row).push(box); else rows.set(box.row, [box]); };
    let root, top = 0;
    if (state.shape === "sandwich") {
      root = calleesOf(state.function);
      const callers = callersOf(state.function);
      if (callers.places.length) top = this._grow(callers, 0, -1, value, put);
      rows.delete(0);  // the function itself, which its callees have, too
      this._grow(root, 0, 1, value, put);
    } else {
      root = state.zoomed;
      for (let at = root.up; at; at = at.up) put({item: at, left: 0, width, row: at.depth, above: true});
      this._grow(root, root.depth, 1, value, put);
    }
    this.boxes = [];
    for (const [row, boxes] of rows) {
      boxes.sort((a, b) => a.left - b.left).forEach(box => { box.row = row - top; });
      this.boxes[row - top] = boxes;
    }
    for (let at = 0; at < this.boxes.length; at++) this.boxes[at] ??= [];
    this.none = !(value(root) > 0);
    this._say();
    this.space.style.height = this.boxes.length * ROW + (this.none ? 40 : 0) + "px";
    this.paint();
  },
  // The widest boxes of the first rows as text, for who sees no pixels.
  _say() {
    const rows = this.boxes.slice(0, 12).map(boxes =>
      [...boxes].sort((a, b) => b.width - a.width).slice(0, 8).map(({item}) => nameOf(item.procedure).slice(0, 100)));
    this.chart.dataset.rows = rows.map(names => names.join("\t")).join("\n");
    this.chart.textContent = rows.map(names => names.join(", ")).join("; ");
  },
  // Boxes for an item and what is below it in the tree, each in the row of its `step`. Returns the last row.
  _grow(root, row, step, value, put) {
    let last = row;
    if (!(value(root) > 0)) return last;
    const scale = this.width / value(root), pending = [[root, 0, row]];
    while (pending.length) {
      const [item, left, at] = pending.pop();
      put({item, left, width: value(item) * scale, row: at});
      last = step > 0 ? Math.max(last, at) : Math.min(last, at);
      let from = left;
      const wide = item.children.filter(child => value(child) * scale >= LEAST_PIXELS);
      for (const child of wide.sort((a, b) => value(b) - value(a))) {
        pending.push([child, from, at + step]);
        from += value(child) * scale;
      }
    }
    return last;
  },

  colours() {
    const style = getComputedStyle(document.documentElement), read = name => style.getPropertyValue(`--${name}`).trim();
    const rgb = text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16));
    this.palette = {
      owners: owners.map(read), useful: rgb(read("useful")), idleness: rgb(read("idleness")),
      page: read("page"), text: read("text"), ink: read("on-colour"), match: read("match"),
    };
  },
  colourOf(item, by) {
    if (by === "owner") return this.palette.owners[procedures.owner[item.procedure]];
    const most = cores > 1 ? cores - 1 : 1, share = Math.min(1, idleCores(item.inclusive) / most);
    const {useful, idleness} = this.palette;
    return `rgb(${useful.map((part, at) => Math.round(part + share * (idleness[at] - part))).join(" ")})`;
  },

  paint() {
    if (!this.palette) this.colours();
    const {chart, scroller} = this, dots = devicePixelRatio || 1;
    const width = this.width, height = Math.min(scroller.clientHeight, this.space.offsetHeight) || ROW;
    if (chart.width !== Math.round(width * dots) || chart.height !== Math.round(height * dots)) {
      chart.width = Math.round(width * dots);
      chart.height = Math.round(height * dots);
      chart.style.width = width + "px";
      chart.style.height = height + "px";
    }
    const pen = chart.getContext("2d"), {palette} = this;
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px ui-monospace, monospace";
    pen.textBaseline = "middle";
    const letter = pen.measureText("m").width, top = scroller.scrollTop;
    if (this.none) {
      pen.fillStyle = palette.text;
      pen.fillText(`There is no ${METRICS[state.by].label} here.`, 4, this.boxes.length * ROW + 16 - top);
    }
    const last = Math.min(this.boxes.length, Math.ceil((top + height) / ROW));
    for (let row = Math.floor(top / ROW); row < last; row++) {
      for (const box of this.boxes[row]) this._box(pen, box, row * ROW - top, letter);
    }
    for (const [box, colour] of [[this.selected, palette.text], [this.hovered, palette.text]]) {
      if (!box || !this.boxes[box.row]?.includes(box)) continue;
      pen.strokeStyle = colour;
      pen.lineWidth = 2;
      pen.strokeRect(box.left + 1, box.row * ROW - top + 1, Math.max(box.width - 2, 1), ROW - 3);
    }
  },
  _box(pen, box, top, letter) {
    const {palette} = this, isMatch = search.has(box.item.procedure);
    const isDim = search.procedures && !isMatch;
    pen.globalAlpha = (box.above ? 0.55 : 1) * (isDim ? 0.35 : 1);
    pen.fillStyle = isMatch ? palette.match : this.colourOf(box.item, state.colour);
    pen.fillRect(box.left, top, Math.max(box.width - (box.width > 3 ? 1 : 0), 0.5), ROW - 1);
    const room = Math.floor((box.width - 7) / letter);
    if (room >= 2) {
      const name = nameOf(box.item.procedure);
      pen.globalAlpha = isDim ? 0.7 : 1;
      pen.fillStyle = isDim ? palette.text : palette.ink;
      pen.fillText(name.length > room ? name.slice(0, room - 1) + "…" : name, box.left + 3, top + ROW / 2);
    }
    pen.globalAlpha = 1;
  },

  at(x, y) {
    const boxes = this.boxes[Math.floor((y + this.scroller.scrollTop) / ROW)] ?? [];
    let low = 0, high = boxes.length - 1;
    while (low <= high) {
      const middle = low + high >> 1, box = boxes[middle];
      if (x < box.left) high = middle - 1;
      else if (x >= box.left + Math.max(box.width, 1)) low = middle + 1;
      else return box;
    }
    return null;
  },
  select(box) {
    this.selected = box;
    const top = box.row * ROW;
    if (top < this.scroller.scrollTop || top + ROW > this.scroller.scrollTop + this.scroller.clientHeight) {
      this.scroller.scrollTop = Math.max(0, top - this.scroller.clientHeight / 2);
    }
    this.paint();
    describe(box.item);
  },
  find(item) {
    return this.boxes.flat().find(box => box.item === item) ?? null;
  },
  move(key) {
    const box = this.selected && this.boxes[this.selected.row]?.includes(this.selected)
      ? this.selected : this.boxes.find(row => row.length)?.[0];
    if (!box) return;
    if (box !== this.selected) return this.select(box);
    const row = this.boxes[box.row], middle = box.left + Math.min(box.width, 1) / 2;
    const near = other => (this.boxes[other] ?? []).find(one => one.left <= middle && middle < one.left + one.width);
    const next = {
      ArrowLeft: () => row[row.indexOf(box) - 1], ArrowRight: () => row[row.indexOf(box) + 1],
      ArrowUp: () => near(box.row - 1),
      ArrowDown: () => near(box.row + 1) ??
        (this.boxes[box.row + 1] ?? []).find(one => one.left >= box.left && one.left < box.left + box.width),
    }[key]();
    if (next) this.select(next);
  },
};
