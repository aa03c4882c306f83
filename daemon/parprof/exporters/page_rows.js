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
    this.drawn = new Map();
    this.above = this._space();
    this.below = this._space();
  }
  show(rows, render) {
    this.rows = rows;
    this.render = render;
    this.again();
  }
  // Makes the rows in sight anew.
  again() {
    this.drawn = new Map();
    this.body.replaceChildren(this.above, this.below);
    this.draw();
  }
  draw() {
    const {box, height, rows, drawn, body} = this;
    if (!this.render || !box.offsetParent) return;
    const from = Math.max(0, Math.floor(box.scrollTop / height) - 10);
    const to = Math.min(rows.length, Math.ceil((box.scrollTop + Math.max(box.clientHeight, innerHeight)) / height) + 10);
    for (const [at, row] of drawn) {
      if (at >= from && at < to) continue;
      row.remove();
      drawn.delete(at);
    }
    this.above.style.height = from * height + "px";
    this.below.style.height = (rows.length - to) * height + "px";
    let next = this.below;
    for (let at = to - 1; at >= from; at--) {
      if (!drawn.has(at)) drawn.set(at, body.insertBefore(this.render(rows[at], at), next));
      next = drawn.get(at);
    }
    this.table.setAttribute("aria-rowcount", rows.length);
  }
  reveal(at) {
    const top = at * this.height, {box} = this;
    const head = this.head.offsetHeight;
    if (top < box.scrollTop || top + this.height + head > box.scrollTop + box.clientHeight) {
      box.scrollTop = Math.max(0, top - box.clientHeight / 2);
    }
    this.again();
  }
  _soon() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.draw(); });
  }
  _space() {
    const space = made("tr", {className: "space"});
    space.setAttribute("aria-hidden", "true");
    return space;
  }
}
