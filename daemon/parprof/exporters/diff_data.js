// What the page of differences knows, and the call paths as items that a flame graph shows.
const {kinds, rows, graph} = JSON.parse(byId("data").textContent);
const METRICS = {
  after: {label: "B", of: m => m("after")}, before: {label: "A", of: m => m("before")},
};
const START = {kind: 0, real: true, text: "", sort: "change", up: false, by: "after", shape: "icicle", colour: "change"};
const state = {...START};
const owners = [], nameOf = node => graph.name[node];
const callees = graph.parent.map(() => []);
graph.parent.forEach((parent, node) => { if (parent >= 0) callees[parent].push(node); });

class Path {
  constructor(node, up = null) {
    Object.assign(this, {node, up, procedure: node, depth: up ? up.depth + 1 : 0});
    this.inclusive = side => this.change[side === "after" ? 1 : 0];
  }
  // Of the kind that is looked at, with callees: before, after, how far off, whether it is real.
  get change() { return graph.changes[this.node][state.kind >> 1]; }
  get children() { return this._children ??= callees[this.node].map(node => new Path(node, this)); }
}
const wholeProcess = new Path(0);
state.zoomed = wholeProcess;
function pathOf(node) {
  if (!(node > 0 && node < graph.parent.length)) return wholeProcess;
  return pathOf(graph.parent[node]).children.find(child => child.node === node);
}
const search = {
  get procedures() { return state.text ? this : null; },
  has(node) {
    const wanted = state.text.toLowerCase();
    return wanted !== "" && (graph.name[node].toLowerCase().includes(wanted) || graph.where[node].toLowerCase().includes(wanted));
  },
};
