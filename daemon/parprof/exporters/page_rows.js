// A table of any length: only the rows in sight are in the page.
class Rows {
  constructor(box, height, className) {
    this.box = box;
    this.height = height;
    this.head = made("thead");
    this.body = made("tbody");
    this.table = made("table", {className}, this.head, this.body);
    box.replaceChildren(this.table);
    box.addEventListener("scroll", () => this._soon(), {passive: true});
    this.rows = [];
  }
  show(rows, render) {
    this.rows = rows;
    this.render = render;
    this.drawn = new Map();
    this.draw();
  }
  draw() {
    const {box, height, rows} = this;
    if (!this.render || !box.offsetParent) return;
    const from = Math.max(0, Math.floor(box.scrollTop / height) - 10);
    const to = Math.min(rows.length, Math.ceil((box.scrollTop + Math.max(box.clientHeight, innerHeight)) / height) + 10);
    const shown = [this._space(from)], drawn = new Map();
    for (let at = from; at < to; at++) {
      drawn.set(at, this.drawn.get(at) ?? this.render(rows[at], at));
      shown.push(drawn.get(at));
    }
    shown.push(this._space(rows.length - to));
    this.drawn = drawn;
    this.body.replaceChildren(...shown);
    this.table.setAttribute("aria-rowcount", rows.length);
  }
  reveal(at) {
    const top = at * this.height, {box} = this;
    const head = this.head.offsetHeight;
    if (top < box.scrollTop || top + this.height + head > box.scrollTop + box.clientHeight) {
      box.scrollTop = Math.max(0, top - box.clientHeight / 2);
    }
    this.drawn = new Map();
    this.draw();
  }
  _soon() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.draw(); });
  }
  _space(rows) {
    const space = made("tr", {className: "space"});
    space.style.height = rows * this.height + "px";
    space.setAttribute("aria-hidden", "true");
    return space;
  }
}
