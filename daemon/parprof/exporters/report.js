// The page as a whole: what it shows (its state, which the address keeps), search, keys.
const TABS = ["flame", "table", "source", "threads"];
const choices = Object.entries(METRICS).filter(([key, {of}]) => {
  const other = others.find(({name}) => name === key);
  return !other || of(ofTotal);
});
const firstMetric = ofTotal("idleness") ? "idleness" : "work";
const START = {
  tab: "flame", by: firstMetric, shape: "icicle", colour: "owner", view: "paths", sort: "idleness.inclusive",
  up: false, file: 0, line: 0, text: "", zoomed: wholeProcess, function: 0, from: 0, to: 0, thread: -1,
};
const showsFlame = () => state.tab === "flame" || state.tab === "threads" && !part.isWhole;
const state = {...START};
{
  const wanted = new URLSearchParams(location.search).get("by");
  if (choices.some(([key]) => key === wanted)) START.by = state.by = wanted;
}

function describe(item) {
  const m = item.inclusive, own_ = item.own, box = byId("details");
  const part = (key, label) => `${label} ${percent(METRICS[key].of(m))} % (itself ${percent(METRICS[key].of(own_))} %)`;
  const told = [part("idleness", "idleness"), part("work", "useful work"), part("overhead", "overhead")];
  for (const one of others) if (one.graph && m(one.name)) told.push(`${one.label} ${amount(one, m(one.name))}`);
  told.push(`${m("samples").toLocaleString("en")} samples`,
            `${idleCores(m).toFixed(1)} of ${cores} cores idle while it ran`, `verdict: ${verdicts[verdictOf(item)]}`);
  if (gainOf(m) >= 1.005) told.push(`the run at best ${gainText(gainOf(m))} times as fast if that is fixed`);
  const links = made("span", {className: "actions"});
  const link = (label, target) => {
    const button = made("button", {type: "button", textContent: label});
    button.onclick = () => change(target());
    links.append(button);
  };
  const function_ = nodes.procedure[functionNode[item.node]];
  if (function_) link("callers and callees", () => ({tab: "flame", shape: "sandwich", function: function_}));
  if (state.tab !== "table") link("in the table", () => ({tab: "table", view: "paths", shownNode: item.node}));
  if (state.tab !== "flame") link("in the flame graph", () => ({tab: "flame", shape: "icicle", zoomed: itemOf(item.node)}));
  const file = sources.findIndex(one => one.file === fileOf(item.procedure));
  if (file >= 0) link("source", () => ({tab: "source", file, line: item.line}));
  box.replaceChildren(made("b", {textContent: nameOf(item.procedure)}), ` ${whereOf(item.procedure, item.line)} `, links,
                      made("small", {textContent: told.join(" · ")}));
  described = item;
}
let described = null;

// The item of the icicle that a node is in.
function itemOf(node) {
  const path = [];
  for (let at = node; at > 0; at = nodes.parent[at]) path.unshift(at);
  return path.reduce((item, at) => item.children.find(child => child.node === at) ?? item, wholeProcess);
}
function zoomedKey() {
  const {shape, zoomed} = state;
  if (shape === "sandwich") return nameOf(state.function).slice(0, 500);
  return zoomed instanceof Callers ? zoomed.key : zoomed.node ? zoomed.key : "";
}
function zoomedOf(shape, key) {
  if (shape === "inverted") {
    let item = inverted();
    for (const step of (key ?? "").split(".").filter(Boolean).slice(1)) {
      item = item.children.find(child => child.procedure.toString(36) === step) ?? item;
    }
    return item;
  }
  const node = key ? nodeOfKey(key) : 0;
  return itemOf(Math.max(node, 0));
}

function toFragment() {
  const fragment = new URLSearchParams(), {tab} = state;
  const put = (key, value, usual) => { if (String(value) !== String(usual)) fragment.set(key, value); };
  put("tab", tab, START.tab);
  put("by", state.by, START.by);
  if (showsFlame()) {
    put("shape", state.shape, START.shape);
    put("colour", state.colour, START.colour);
    put("at", zoomedKey(), "");
  }
  if (tab === "table") {
    put("view", state.view, START.view);
    put("sort", state.sort, START.sort);
    put("up", state.up ? 1 : 0, 0);
  }
  if (tab === "source" && sources.length) {
    put("file", sources[state.file].file, sources[0].file);
    put("line", state.line, 0);
  }
  if (part.isSpan) part.ends.forEach((end, at) => put(["from", "to"][at], (end / 1e6).toFixed(3), ""));
  put("thread", state.thread + 1, 0);
  put("search", state.text, "");
  return fragment.toString();
}
function fromFragment() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const cause = causes[fragment.get("cause") - 1];
  if (cause !== undefined) {
    Object.assign(state, {from: 0, to: 0, thread: -1});
    part.set(state);
    Object.assign(state, {tab: "flame", shape: "icicle", by: METRICS.lost.of(ofTotal) ? "lost" : state.by,
                          zoomed: itemOf(cause), text: ""});
    search.set("");
    return wholeChange(true);
  }
  const [from, to] = part.spanOf(fragment.get("from"), fragment.get("to"));
  const thread = Number(fragment.get("thread")) - 1;
  Object.assign(state, {from, to, thread: threads.rows[thread] ? thread : -1});
  part.set(state);
  const one = (key, known) => known.includes(fragment.get(key)) ? fragment.get(key) : START[key];
  const shape = one("shape", ["icicle", "inverted", "sandwich"]);
  const named = shape === "sandwich" ? procedures.name.findIndex(name => names[name].slice(0, 500) === fragment.get("at")) : 0;
  const file = sources.findIndex(source => source.file === fragment.get("file"));
  Object.assign(state, {
    tab: one("tab", TABS), by: one("by", choices.map(([key]) => key)), shape, colour: one("colour", ["owner", "cores"]),
    view: one("view", ["paths", "callers", "flat"]), sort: fragment.get("sort") ?? START.sort,
    up: fragment.get("up") === "1", file: Math.max(file, 0), line: Number(fragment.get("line")) || 0,
    text: fragment.get("search") ?? "", function: Math.max(named, 0), zoomed: zoomedOf(shape, fragment.get("at")),
  });
  search.set(state.text);
  wholeChange();
}
// Shows another thing. `remembered`: Back returns to what was shown before.
function change(to, remembered = true) {
  const {shape} = state, zoomed = zoomedKey();
  Object.assign(state, to);
  if (part.set(state)) {
    if (!to.zoomed && state.shape === shape) state.zoomed = zoomedOf(shape, zoomed);
    if (!METRICS[state.by].of(ofTotal) && METRICS.work.of(ofTotal)) state.by = "work";  // rather than nothing
  }
  if (state.shape !== shape && !to.zoomed) {
    if (state.shape === "sandwich" && !to.function) state.function = nodes.procedure[functionNode[hottestNode()]];
    state.zoomed = zoomedOf(state.shape, "");
  }
  const address = `#${toFragment()}`;
  history[remembered ? "pushState" : "replaceState"](null, "", address);
  wholeChange();
}
function hottestNode() {
  if (described && described.node) return described.node;
  const value = METRICS[state.by].of;
  let best = 0, most = -1;
  for (let at = 1; at < count; at++) {
    const mine = value(name => own[name]?.[at] ?? 0);
    if (mine > most) [best, most] = [at, mine];
  }
  return best;
}

function wholeChange(isCause = false) {
  for (const tab of TABS) {
    byId(tab).hidden = tab === "flame" ? !showsFlame() : state.tab !== tab;
    const button = document.querySelector(`[data-tab=${tab}]`);
    button.setAttribute("aria-selected", state.tab === tab);
    button.tabIndex = state.tab === tab ? 0 : -1;
  }
  document.body.classList.toggle("both", state.tab === "threads" && showsFlame());
  for (const label of document.querySelectorAll("[data-for]")) {
    label.hidden = !label.dataset.for.includes(state.tab) && !(showsFlame() && label.dataset.for.includes("flame"));
  }
  byId("of").hidden ||= threads.rows.length < 2;
  for (const key of ["by", "shape", "colour", "view", "thread"]) byId(key).value = state[key];
  if (byId("search").value !== state.text) byId("search").value = state.text;
  legend();
  partAnswer.show();
  layout();
  tellMatches();
  if (showsFlame()) {
    const item = state.shape === "sandwich" ? calleesOf(state.function) : state.zoomed;
    flame.selected = flame.boxes.flat().find(box => box.item.node === item.node && !box.above && box.item.procedure === item.procedure) ?? null;
    flame.paint();
    describe(item);
  }
  if (state.tab === "table" && !table.shown.some(item => item.key === table.selected) && table.shown.length) table.select(0);
  else if (state.tab === "table") describe(table.shown.find(item => item.key === table.selected) ?? wholeProcess);
  if (isCause) byId("bar").scrollIntoView({block: "start"});
}
function layout() {
  if (showsFlame()) flame.layout();
  if (state.tab === "table") {
    if (state.shownNode !== undefined) table.show(state.shownNode); else table.layout();
    delete state.shownNode;
  }
  if (state.tab === "source") source.layout();
  if (state.tab === "threads") threadView.layout();
}
function legend() {
  const sample = (kind, label) => made("span", {}, made("i", {className: kind}), ` ${label}`);
  const labels = {program: "the program", library: "libraries", system: "system and runtimes", kernel: "kernel"};
  byId("legend").replaceChildren(...(state.colour === "owner" ? owners.map(owner => sample(owner, labels[owner]))
    : ["all cores busy while it ran", made("i", {className: "scale"}), `${cores - 1} of ${cores} idle`]));
}
function tellMatches() {
  if (!search.procedures) { byId("found").textContent = ""; return; }
  const value = METRICS[state.by].of, pending = [0];
  let matched = 0;
  while (pending.length) {  // the outermost ones: what they call is theirs
    const at = pending.pop();
    if (at && search.has(nodes.procedure[at])) matched += value(name => inclusive[name]?.[at] ?? 0);
    else for (let next = first[at]; next < first[at + 1]; next++) pending.push(callees[next]);
  }
  const whole = value(ofTotal), share = whole ? (100 * matched / whole).toFixed(1) : "0.0";
  const {size} = search.procedures;
  byId("found").textContent = `${size.toLocaleString("en")} function${size === 1 ? "" : "s"} found, with ${share} % of ${METRICS[state.by].label}`;
}
let lastMatch = -1;
function nextMatch() {
  if (!search.procedures?.size) return;
  if (showsFlame()) {
    const boxes = flame.boxes.flat().filter(box => search.has(box.item.procedure));
    if (boxes.length) flame.select(boxes[lastMatch = (lastMatch + 1) % boxes.length]);
  } else if (state.tab === "table") {
    if (state.view === "paths") {
      const found = [...nodes.procedure.keys()].filter(at => at && search.has(nodes.procedure[at]));
      if (found.length) table.show(found[lastMatch = (lastMatch + 1) % found.length]);
    } else {
      const rows = [...table.shown.keys()].filter(at => search.has(table.shown[at].procedure));
      if (rows.length) table.select(rows[lastMatch = (lastMatch + 1) % rows.length]);
    }
  }
}

// Controls.
byId("by").replaceChildren(...choices.map(([key, {label}]) => made("option", {value: key, textContent: label})));
for (const key of ["by", "shape", "colour", "view"]) byId(key).onchange = event => change({[key]: event.target.value});
byId("thread").replaceChildren(made("option", {value: -1, textContent: "all"}),
  ...threads.rows.map(([name], value) => made("option", {value, textContent: name})));
byId("thread").onchange = event => change({thread: Number(event.target.value)});
byId("file").onchange = event => change({file: Number(event.target.value), line: 0});
const tabs = [...document.querySelectorAll("[data-tab]")];
tabs.forEach((button, at) => {
  button.onclick = () => change({tab: button.dataset.tab});
  button.onkeydown = event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    const next = tabs[(at + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  };
});
byId("search").oninput = event => {
  lastMatch = -1;
  search.set(event.target.value);
  change({text: event.target.value}, false);
};
byId("search").onkeydown = event => {
  if (event.key === "Enter") nextMatch();
  if (event.key === "Escape") event.target.blur();
};
const reset = () => {
  search.set("");
  Object.assign(state, {from: 0, to: 0, thread: -1});
  part.set(state);
  change({zoomed: state.shape === "inverted" ? inverted() : wholeProcess, shape: state.shape === "sandwich" ? "icicle" : state.shape, text: ""});
};
byId("reset").onclick = reset;
flame.chart.onpointermove = event => {
  const box = flame.at(event.offsetX, event.offsetY);
  if (box === flame.hovered) return;
  flame.hovered = box;
  flame.chart.style.cursor = box ? "pointer" : "";
  if (box) describe(box.item);
  flame.paint();
};
flame.chart.onpointerleave = () => { flame.hovered = null; flame.paint(); };
function zoom(box) {
  if (!box) return;
  if (state.shape === "sandwich") change({function: nodes.procedure[functionNode[box.item.node]]});
  else change({zoomed: box.item});
}
flame.chart.onclick = event => zoom(flame.at(event.offsetX, event.offsetY));
let painting = null;
flame.scroller.addEventListener("scroll", () => {
  painting ??= requestAnimationFrame(() => { painting = null; flame.paint(); });
}, {passive: true});
flame.chart.onkeydown = event => {
  if (event.key.startsWith("Arrow")) { event.preventDefault(); flame.move(event.key); }
  if (event.key === "Enter" && flame.selected) zoom(flame.selected);
};
byId("rows").onkeydown = event => {
  if (event.target !== byId("rows") || !(event.key.startsWith("Arrow") || event.key === "Enter")) return;
  event.preventDefault();
  table.move(event.key);
};
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key === "Escape") reset();
  else if (event.key === "/") { event.preventDefault(); byId("search").focus(); }
  else if (event.key === "s" && described?.node) {
    change({tab: "flame", shape: "sandwich", function: nodes.procedure[functionNode[described.node]]});
  } else if (TABS["1234".indexOf(event.key)]) change({tab: TABS["1234".indexOf(event.key)]});
});

addEventListener("resize", layout);
addEventListener("popstate", fromFragment);
addEventListener("hashchange", fromFragment);
const recolour = () => { flame.palette = null; flame.paint(); threadView.repaint(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("themechange", recolour);
source.prepare();
fromFragment();
