// What the page knows, as the rest of the script asks for it: the tree, and views of it that are made when asked for.
const {cores, metrics, total, verdicts, owners, names, procedures, nodes, causes, threads, sources} =
  JSON.parse(byId("data").textContent);
const METRICS = {
  idleness: {label: "idleness", of: m => m("idleness")},
  work: {label: "useful work", of: m => m("work") - m("overhead")},
  overhead: {label: "overhead", of: m => m("overhead")},
};
const others = metrics.filter(({name, effort}) => !effort && name !== "samples");
others.filter(({graph}) => graph).forEach(({name, label}) => { METRICS[name] ??= {label, of: m => m(name)}; });
METRICS.effort = {label: "effort", of: m => m("work") + m("idleness") + m("stall")};
METRICS.lost = {label: "all that is lost", of: m => m("idleness") + m("stall") + m("overhead")};

const count = nodes.parent.length;
const own = {}, inclusive = {}, totals = {}, combiners = {add: (a, b) => a + b, max: Math.max, min: Math.min};
const ofTotal = name => totals[name] ?? 0, effort = METRICS.effort.of;
let all = 0;
// What each node has itself, by metric, and all of it together: by default what adds up.
function charge(columns, whole = null) {
  metrics.forEach(({name, combine}, column) => {
    const mine = Float64Array.from(columns[name] ?? []), sum = mine.slice(), add = combiners[combine] ?? combiners.max;
    for (let at = count - 1; at > 0; at--) {
      const parent = nodes.parent[at];
      sum[parent] = add(sum[parent], sum[at]);
    }
    own[name] = mine;
    inclusive[name] = sum;
    totals[name] = whole ? whole[column] : sum[0];
  });
  all = effort(ofTotal);
}
charge(nodes.own, total);
const wholeEffort = all;

// Callees of node i: callees[first[i]] up to callees[first[i + 1]].
const first = new Int32Array(count + 2), callees = new Int32Array(Math.max(count - 1, 0));
for (let at = 1; at < count; at++) first[nodes.parent[at] + 1]++;
for (let at = 0; at <= count; at++) first[at + 1] += first[at];
{
  const next = first.slice();
  for (let at = 1; at < count; at++) callees[next[nodes.parent[at]]++] = at;
}

// The function that a node is, or that its loop is in.
const functionNode = new Int32Array(count);
for (let at = 0; at < count; at++) {
  const isLoop = at > 0 && procedures.loop[nodes.procedure[at]];
  functionNode[at] = isLoop ? functionNode[nodes.parent[at]] : at;
}

// A short name of each call path that other profiles of the program have, too.
const pathHash = new Uint32Array(count);
{
  const hashes = new Map();
  const hash = text => {
    let value = 2166136261;
    for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 16777619);
    return value;
  };
  for (let at = 1; at < count; at++) {
    const name = procedures.name[nodes.procedure[at]];
    if (!hashes.has(name)) hashes.set(name, hash(names[name]));
    pathHash[at] = Math.imul(pathHash[nodes.parent[at]] ^ hashes.get(name), 16777619) + 1;
  }
}
const keyOf = node => pathHash[node].toString(36);
const nodeOfKey = key => pathHash.findIndex(hash => hash.toString(36) === key);

const nameOf = procedure => names[procedures.name[procedure]];
const fileOf = procedure => names[procedures.file[procedure]];
const base = path => path.slice(path.lastIndexOf("/") + 1);
function whereOf(procedure, line) {
  const file = fileOf(procedure), module = names[procedures.module[procedure]];
  if (procedures.loop[procedure]) return line > 0 && !nameOf(procedure).endsWith(`:${line}`) ? `(line ${line})` : "";
  if (file) return line > 0 ? `(${base(file)}:${line})` : `(${base(file)})`;
  return module ? `[${base(module)}]` : "";
}

// Nodes of one procedure with what they call. `up` is the item that calls it.
class Callees {
  constructor(group, up = null) {
    this.nodes = group;
    this.up = up;
    this.procedure = nodes.procedure[group[0]];
    this.depth = up ? up.depth + 1 : 0;
    this.inclusive = name => this._sum(inclusive, name);
    this.own = name => this._sum(own, name);
  }
  get line() { return nodes.line[this.nodes[0]]; }
  get node() { return this.nodes[0]; }
  get key() { return keyOf(this.node); }
  get leaf() { return this.nodes.every(node => first[node] === first[node + 1]); }
  get children() {
    if (this._children) return this._children;
    const groups = new Map();
    for (const node of this.nodes) {
      for (let at = first[node]; at < first[node + 1]; at++) {
        const procedure = nodes.procedure[callees[at]];
        if (groups.has(procedure)) groups.get(procedure).push(callees[at]);
        else groups.set(procedure, [callees[at]]);
      }
    }
    return this._children = [...groups.values()].map(group => new Callees(group, this));
  }
  _sum(column, name) {
    const values = column[name];
    if (!values) return 0;
    if (this.nodes.length === 1) return values[this.nodes[0]];
    return this.nodes.reduce((sum, node) => sum + values[node], 0);
  }
}

// A procedure, its callers below it; what it has is that of `sources`, as far as they were reached by `places`.
class Callers {
  constructor(places, weights, isOwn, up = null, procedure = nodes.procedure[places[0]]) {
    Object.assign(this, {places, weights, isOwn, up, procedure, depth: up ? up.depth + 1 : 0, cached: new Map()});
    this.inclusive = name => this._sum(isOwn ? own : inclusive, name);
    this.own = name => this._sum(own, name);
  }
  get line() { return nodes.line[this.node]; }
  get node() { return this.isRoot ? 0 : this.places[0]; }
  get key() { return `${this.up ? this.up.key : ""}.${this.procedure.toString(36)}`; }
  get leaf() { return this.places.every(at => callerOf(at) === 0); }
  get children() {
    if (this._children) return this._children;
    const groups = new Map();
    for (let at = 0; at < this.places.length; at++) {
      const caller = this.isRoot ? this.places[at] : callerOf(this.places[at]);
      if (!caller) continue;
      const procedure = nodes.procedure[caller];
      if (!groups.has(procedure)) groups.set(procedure, [[], []]);
      groups.get(procedure)[0].push(caller);
      groups.get(procedure)[1].push(this.weights[at]);
    }
    return this._children =
      [...groups.values()].map(([places, weights]) => new Callers(places, weights, this.isOwn, this));
  }
  _sum(column, name) {
    const values = column[name];
    if (!values) return 0;
    const key = (column === own ? "own " : "") + name;
    if (!this.cached.has(key)) {
      let sum = 0;
      for (const weight of this.weights) sum += values[weight];
      this.cached.set(key, sum);
    }
    return this.cached.get(key);
  }
}
const callerOf = node => node > 0 && nodes.parent[node] >= 0 ? functionNode[nodes.parent[node]] : 0;

const wholeProcess = new Callees([0]);

// Where each function is entered: it is not on the call path yet. And where anything of it was sampled.
let entriesMade = null;
function functions() {
  if (entriesMade) return entriesMade;
  const entries = new Map(), onPath = new Set(), samples = new Map();
  const pending = [0];
  while (pending.length) {
    const at = pending.pop();
    if (at < 0) { onPath.delete(nodes.procedure[~at]); continue; }
    const procedure = nodes.procedure[at];
    if (at && functionNode[at] === at && !onPath.has(procedure)) {
      if (!entries.has(procedure)) entries.set(procedure, []);
      entries.get(procedure).push(at);
      onPath.add(procedure);
      pending.push(~at);
    }
    const function_ = nodes.procedure[functionNode[at]];
    if (at) {
      if (!samples.has(function_)) samples.set(function_, []);
      samples.get(function_).push(at);
    }
    for (let next = first[at]; next < first[at + 1]; next++) pending.push(callees[next]);
  }
  return entriesMade = {entries, samples};
}

// A row of the table of functions.
class Total {
  constructor(procedure) {
    const {entries, samples} = functions();
    Object.assign(this, {procedure, up: null, depth: 0, children: [], leaf: true, cached: new Map()});
    this.nodes = entries.get(procedure) ?? [];
    this.inclusive = name => this._sum(inclusive, name, this.nodes);
    this.own = name => this._sum(own, name, samples.get(procedure) ?? []);
  }
  get line() { return nodes.line[this.node]; }
  get node() { return this.nodes[0] ?? 0; }
  get key() { return `f${this.procedure.toString(36)}`; }
  _sum(column, name, group) {
    const values = column[name], key = (column === own ? "own " : "") + name;
    if (!values) return 0;
    if (!this.cached.has(key)) this.cached.set(key, group.reduce((sum, node) => sum + values[node], 0));
    return this.cached.get(key);
  }
}
let flatMade = null, callersMade = null, invertedMade = null;
const flatRows = () => flatMade ??= [...functions().entries.keys()].map(procedure => new Total(procedure));
const calleesOf = procedure => new Callees(functions().entries.get(procedure) ?? [0]);
const callersOf = procedure => {
  const group = functions().entries.get(procedure) ?? [];
  return new Callers(group, group, false, null, procedure);
};
const callerRows = () => callersMade ??= [...functions().entries.keys()].map(callersOf);
function inverted() {
  if (invertedMade) return invertedMade;
  const weights = [];
  for (let at = 1; at < count; at++) if (metrics.some(({name}) => own[name][at])) weights.push(at);
  invertedMade = new Callers(weights.map(at => functionNode[at]), weights, true, null, 0);
  invertedMade.isRoot = true;
  return invertedMade;
}

const percent = (value, digits = 1) => (all ? 100 * value / all : 0).toFixed(digits);
const amount = ({scale, digits, unit}, value) =>
  `${(value / scale).toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits})} ${unit}`.trimEnd();
// How many times as fast the whole run were at best, without what is lost here (parprof.attribution.gain).
const gainOf = m => {
  const rest = wholeEffort - m("idleness") - m("stall");
  return !wholeEffort ? 1 : rest > 0 ? wholeEffort / rest : Number.MAX_VALUE;
};
const gainText = gain => gain < 9999.5 ? gain.toFixed(gain < 99.995 ? 2 : 0) : ">9999";
const idleCores = m => effort(m) ? cores * (m("idleness") + m("stall")) / effort(m) : 0;

// What is looked for: the procedures whose name or file has it.
const search = {
  text: "", procedures: null,
  set(text) {
    this.text = text;
    this.procedures = null;
    if (!text) return;
    const wanted = text.toLowerCase(), hits = names.map(name => name.toLowerCase().includes(wanted));
    this.procedures = new Set();
    for (let at = 1; at < procedures.name.length; at++) {
      if (hits[procedures.name[at]] || hits[procedures.file[at]]) this.procedures.add(at);
    }
  },
  has(procedure) { return this.procedures !== null && this.procedures.has(procedure); },
};
