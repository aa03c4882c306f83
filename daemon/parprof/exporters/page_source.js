// The source with what its lines cost, as far as its text was put into the page.
const source = {
  rows: new Rows(byId("lines"), 20, "source"), line: 0,

  prepare() {
    byId("file").replaceChildren(...sources.map(({file}, at) => made("option", {value: at, textContent: file})));
    const cells = ["idleness %", "with calls", "useful work %", "with calls", "", "line", "source"];
    this.rows.head.replaceChildren(made("tr", {}, ...cells.map(text => made("th", {scope: "col", textContent: text}))));
  },
  layout() {
    const file = sources[state.file];
    byId("said").textContent = file ? [file.file, file.note, part.isWhole ? "" : "of the whole run"].filter(Boolean).join(": ")
      : "No line of the program's source is known: compile it with -g.";
    if (!file) return this.rows.show([], () => null);
    byId("file").value = state.file;
    const text = new Map();
    for (const [from, lines] of file.parts) lines.forEach((line, at) => text.set(from + at, line));
    const numbers = [...new Set([...text.keys(), ...Object.keys(file.lines).map(Number)])].sort((a, b) => a - b);
    const rows = [];
    numbers.forEach((number, at) => {
      if (at && number > numbers[at - 1] + 1) rows.push({gap: true});
      rows.push({number, text: text.get(number) ?? "", costs: file.lines[number]});
    });
    this.most = Math.max(1, ...Object.values(file.lines).map(([idle]) => idle));
    this.file = file;
    this.rows.show(rows, row => this._row(row));
    const wanted = state.line || this._hottest(file);
    const at = rows.findIndex(({number}) => number === wanted);
    if (at >= 0) this.rows.reveal(at);
  },
  _hottest({lines}) {
    const weight = number => lines[number][0] || lines[number][2] / 1e6;
    return Number(Object.keys(lines).reduce((a, b) => a && weight(a) >= weight(b) ? a : b, ""));
  },
  _row({gap, number, text, costs}) {
    if (gap) return made("tr", {className: "gap"}, made("td", {colSpan: 7, textContent: "⋯"}));
    const shares = costs ? costs.slice(0, 4).map(value => value ? (100 * value / wholeEffort).toFixed(1) : "") : ["", "", "", ""];
    const depth = this.file.loops.filter(([from, to]) => from <= number && number <= to);
    const begins = depth.filter(([from]) => from === number);
    const mark = made("td", {className: "loop", textContent: "│".repeat(depth.length - begins.length) + "┌".repeat(begins.length)});
    if (depth.length) mark.title = depth.map(([from, to]) => `loop at ${from}-${to}`).join(", in it ");
    const row = made("tr", {}, ...shares.map(share => made("td", {textContent: share})), mark,
                     made("td", {className: "number", textContent: number}),
                     made("td", {className: "code", textContent: text}));
    if (costs) {
      const heat = Math.round(60 * costs[0] / this.most);
      if (heat) row.style.background = `color-mix(in srgb, var(--idleness) ${heat}%, transparent)`;
      row.title = `${costs[4].toLocaleString("en")} samples with what is called here`;
    }
    if (number === state.line) row.setAttribute("aria-selected", "true");
    row.onclick = () => change({line: number}, false);
    return row;
  },
  has: name => sources.some(({file}) => file === name),
};
