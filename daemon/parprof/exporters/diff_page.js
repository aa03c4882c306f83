// The page of differences: a flame graph of call paths, and a table of functions, the real changes alone or all.
const table = new Rows(byId("rows"), 23, "tree");
const COLUMNS = [
  ["A s", ([before]) => before], ["B s", ([, after]) => after], ["change s", ([before, after]) => after - before],
  ["± s", ([, , spread]) => spread],
];
const seconds = (value, sign = "") => (value > 0 ? sign : "") + (value / 1e6).toFixed(3);

// Only what changed for sure has a colour, the stronger the more of the largest such change it is.
flame.colourOf = function({change: [before, after, , isReal]}) {
  if (!isReal) return this.palette.unsure;
  const delta = after - before, share = 0.35 + 0.65 * Math.min(1, Math.abs(delta) / this.most);
  const colour = delta > 0 ? this.palette.idleness : this.palette.useful, {unsure} = this.palette;
  const from = [1, 3, 5].map(at => parseInt(unsure.slice(at, at + 2), 16));
  return `rgb(${colour.map((part, at) => Math.round(from[at] + share * (part - from[at]))).join(" ")})`;
};
function describe({node, change: [before, after, spread, isReal]}) {
  byId("details").replaceChildren(made("b", {textContent: nameOf(node)}), ` ${graph.where[node]}`,
    made("small", {textContent: `${kinds[state.kind | 1]}: ${seconds(before)} s became ${seconds(after)} s, change ` +
      `${seconds(after - before, "+")} ± ${seconds(spread)} s: ${isReal ? "real" : "may be chance"}`}));
}
function picture() {
  if (!flame.palette) flame.colours();
  flame.palette.unsure = getComputedStyle(document.documentElement).getPropertyValue("--unsure").trim();
  flame.most = Math.max(1, ...graph.changes.map(kinds => kinds[state.kind >> 1]).map(([a, b, , real]) => real ? Math.abs(b - a) : 0));
  byId("by").value = state.by;
  byId("left").textContent = graph.left_out ? `${graph.left_out.toLocaleString("en")} call paths are too small to see` : "";
  flame.layout();
  flame.selected = flame.boxes.flat().find(box => box.item === state.zoomed) ?? null;
  flame.paint();
  describe(state.zoomed);
}
function layout() {
  picture();
  const wanted = state.text.toLowerCase(), of = row => row[2 + state.kind];
  const changed = rows.filter(row => of(row)[0] !== of(row)[1]), real = changed.filter(row => of(row)[3]);
  const shown = (state.real ? real : changed)
    .filter(([name, where]) => name.toLowerCase().includes(wanted) || where.toLowerCase().includes(wanted));
  const column = COLUMNS.find(([label]) => label === state.sort);
  const key = row => column ? column[1](of(row)) : Math.abs(of(row)[1] - of(row)[0]);
  shown.sort((a, b) => (state.up ? -1 : 1) * (state.sort === "function" ? b[0].localeCompare(a[0]) : key(b) - key(a)));
  const most = Math.max(1, ...shown.map(row => Math.abs(of(row)[1] - of(row)[0])));
  byId("found").textContent = `${real.length.toLocaleString("en")} real change${real.length === 1 ? "" : "s"} among ` +
    `${changed.length.toLocaleString("en")} functions that differ, by ${kinds[state.kind]}`;
  const cells = ["function", ...COLUMNS.map(([label]) => label)].map(label => {
    const button = made("button", {type: "button", textContent: label});
    button.onclick = () => change({sort: label, up: state.sort === label ? !state.up : label === "function"});
    const cell = made("th", {scope: "col"}, button);
    if (state.sort === label) cell.setAttribute("aria-sort", state.up ? "ascending" : "descending");
    return cell;
  });
  table.head.replaceChildren(made("tr", {}, ...cells));
  table.show(shown, row => {
    const [before, after, spread, isReal] = of(row), delta = after - before;
    const name = made("td", {title: row[0].slice(0, 500)}, made("span", {className: "name", textContent: row[0]}),
                      made("small", {textContent: ` ${row[1]}`}));
    const bar = made("i", {className: `delta ${!isReal ? "unsure" : delta > 0 ? "more" : "less"}`});
    bar.style.width = 4 * Math.abs(delta) / most + "rem";
    const line = made("tr", {className: isReal ? "real" : "unsure"}, name, made("td", {textContent: seconds(before)}),
                      made("td", {textContent: seconds(after)}),
                      made("td", {}, bar, ` ${seconds(delta, "+")}`), made("td", {textContent: seconds(spread)}));
    line.setAttribute("aria-label", isReal ? "a real change" : "may be chance");
    return line;
  });
}
function change(to) {
  Object.assign(state, to);
  const fragment = new URLSearchParams();
  if (state.kind) fragment.set("by", kinds[state.kind]);
  if (!state.real) fragment.set("all", 1);
  if (state.sort !== "change") fragment.set("sort", state.sort);
  if (state.up) fragment.set("up", 1);
  if (state.text) fragment.set("search", state.text);
  if (state.by !== START.by) fragment.set("width", state.by);
  if (state.zoomed !== wholeProcess) fragment.set("at", state.zoomed.node);
  history.replaceState(null, "", `#${fragment}`);
  layout();
}
function restore() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, {
    kind: Math.max(kinds.indexOf(fragment.get("by")), 0), real: !fragment.has("all"), up: fragment.has("up"),
    sort: fragment.get("sort") ?? "change", text: fragment.get("search") ?? "",
    by: fragment.get("width") === "before" ? "before" : "after", zoomed: pathOf(Number(fragment.get("at"))),
  });
  byId("kind").value = state.kind;
  byId("real").checked = state.real;
  byId("search").value = state.text;
  layout();
}
byId("kind").replaceChildren(...kinds.map((textContent, value) => made("option", {value, textContent})));
byId("by").onchange = event => change({by: event.target.value});
const zoom = box => { if (box) change({zoomed: box.item}); };
flame.chart.onclick = event => zoom(flame.at(event.offsetX, event.offsetY));
flame.chart.onpointermove = event => {
  const box = flame.at(event.offsetX, event.offsetY);
  if (box === flame.hovered) return;
  flame.hovered = box;
  if (box) describe(box.item);
  flame.paint();
};
flame.chart.onpointerleave = () => { flame.hovered = null; flame.paint(); };
flame.chart.onkeydown = event => {
  if (event.key.startsWith("Arrow")) { event.preventDefault(); flame.move(event.key); }
  if (event.key === "Enter") zoom(flame.selected);
};
flame.scroller.addEventListener("scroll", () => flame.paint(), {passive: true});
const recolour = () => { flame.palette = null; picture(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("themechange", recolour);
byId("kind").onchange = event => change({kind: Number(event.target.value)});
byId("real").onchange = event => change({real: event.target.checked});
byId("search").oninput = event => change({text: event.target.value});
addEventListener("keydown", event => {
  if (event.key === "Escape") change({zoomed: wholeProcess});
  if (event.key === "/" && event.target !== byId("search")) { event.preventDefault(); byId("search").focus(); }
});
addEventListener("hashchange", restore);
addEventListener("resize", layout);
restore();
