// The report's flame graph and its table. The data are in the page: exporters/html.py writes them.
"use strict";
(() => {
  const ROW = 20, MIN_PIXELS = 1;
  const {cores, metrics, total, verdicts, names, nodes} = JSON.parse(document.getElementById("data").textContent);
  const METRICS = {
    idleness: {label: "idleness", of: m => m.idleness},
    work: {label: "useful work", of: m => m.work - m.overhead},
    overhead: {label: "overhead", of: m => m.overhead},
  };
  const others = metrics.filter(({name, effort}) => !effort && name !== "samples");
  others.filter(({graph}) => graph).forEach(({name, label}) => { METRICS[name] = {label, of: m => m[name]}; });
  METRICS.effort = {label: "effort", of: m => m.work + m.idleness};
  const unpack = numbers => Object.fromEntries(metrics.map(({name}, column) => [name, numbers[column]]));
  const frames = nodes.map(([parent, name, where, inclusive, exclusive, verdict]) => ({
    parent, name: names[name], where: names[where], verdict: verdicts[verdict],
    inclusive: unpack(inclusive), exclusive: unpack(exclusive), children: [],
  }));
  frames.forEach(frame => { if (frame.parent >= 0) frames[frame.parent].children.push(frame); });

  const byId = id => document.getElementById(id);
  const chart = byId("chart"), details = byId("details");
  const effort = m => m.work + m.idleness;
  const all = effort(unpack(total));
  const percent = value => (all ? 100 * value / all : 0).toFixed(1) + " %";
  const amount = ({scale, digits, unit}, value) => {
    const number = (value / scale).toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
    return `${number} ${unit}`.trimEnd();
  };
  let metric = "idleness", zoomed = frames[0];

  function colour(m) {
    const most = cores > 1 ? (cores - 1) / cores : 1;
    const share = effort(m) ? Math.min(1, m.idleness / effort(m) / most) : 0;
    return `color-mix(in oklab, var(--idleness) ${(100 * share).toFixed(0)}%, var(--useful))`;
  }

  function describe(frame) {
    const {inclusive: inc, exclusive: own} = frame;
    const part = key => `${METRICS[key].label} ${percent(METRICS[key].of(inc))}` +
      ` (itself ${percent(METRICS[key].of(own))})`;
    const idle = effort(inc) ? cores * inc.idleness / effort(inc) : 0;
    const numbers = document.createElement("small");
    numbers.textContent = `of all effort: ${["idleness", "work", "overhead"].map(part).join(", ")}; ` +
      others.filter(one => inc[one.name] || one.name === "spin")
        .map(one => `${one.name} ${amount(one, inc[one.name])}; `).join("") +
      `${inc.samples.toLocaleString("en")} samples; ` +
      `${idle.toFixed(1)} of ${cores} cores idle while it ran; ` +
      `verdict: ${frame.verdict}`;
    details.replaceChildren(`${frame.name} ${frame.where}`, numbers);
  }

  function place(frame, left, width, row, above) {
    const box = document.createElement("button");
    box.type = "button";
    box.textContent = frame.name;
    box.className = above ? "above" : "";
    box.style.left = left + "px";
    box.style.width = width + "px";
    box.style.top = row * ROW + "px";
    box.style.background = colour(frame.inclusive);
    box.onclick = () => { zoomed = frame; draw(); describe(frame); };
    box.onmouseenter = box.onfocus = () => describe(frame);
    chart.append(box);
  }

  function draw() {
    const value = frame => METRICS[metric].of(frame.inclusive);
    const width = chart.clientWidth;
    chart.replaceChildren();
    let rows = 0;
    const ancestors = [];
    for (let at = zoomed; at.parent >= 0; at = frames[at.parent]) ancestors.unshift(frames[at.parent]);
    ancestors.forEach(frame => place(frame, 0, width, rows++, true));
    if (!(value(zoomed) > 0)) {
      const none = document.createElement("p");
      none.className = "faint";
      none.style.marginTop = rows * ROW + "px";
      none.textContent = `There is no ${METRICS[metric].label} here.`;
      chart.append(none);
      chart.style.height = rows * ROW + 30 + "px";
      return;
    }
    const scale = width / value(zoomed);
    const pending = [[zoomed, 0, rows]];
    while (pending.length) {
      const [frame, start, row] = pending.pop();
      place(frame, start, value(frame) * scale, row, false);
      rows = Math.max(rows, row + 1);
      let left = start;
      for (const child of [...frame.children].sort((a, b) => value(b) - value(a))) {
        if (value(child) * scale < MIN_PIXELS) break;
        pending.push([child, left, row + 1]);
        left += value(child) * scale;
      }
    }
    chart.style.height = rows * ROW + "px";
  }

  for (const [key, {label, of}] of Object.entries(METRICS)) {
    if (others.some(({name}) => name === key) && !of(unpack(total))) continue;
    const choice = document.createElement("label"), input = document.createElement("input");
    input.type = "radio";
    input.name = "metric";
    input.value = key;
    input.onchange = () => { metric = key; draw(); };
    choice.append(input, ` ${label} `);
    byId("metrics").append(choice);
  }
  const reset = () => { zoomed = frames[0]; draw(); };
  byId("reset").onclick = reset;
  addEventListener("keydown", event => { if (event.key === "Escape") reset(); });
  addEventListener("resize", draw);
  const choices = new Map([...document.querySelectorAll("#metrics input")].map(input => [input.value, input]));
  const wanted = new URLSearchParams(location.search).get("by");
  metric = choices.has(wanted) ? wanted : frames[0].inclusive.idleness ? "idleness" : "work";
  choices.get(metric).checked = true;
  draw();

  const body = document.querySelector("#flat tbody");
  document.querySelectorAll("#flat th").forEach((heading, column) => {
    heading.querySelector("button").onclick = () => {
      const down = heading.getAttribute("aria-sort") !== "descending";
      document.querySelectorAll("#flat th").forEach(other => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const number = row => Number(key(row));
      const compare = [...body.rows].some(row => isNaN(number(row)))
        ? (a, b) => key(b).localeCompare(key(a)) : (a, b) => number(b) - number(a);
      body.append(...[...body.rows].sort((a, b) => down ? compare(a, b) : compare(b, a)));
    };
  });
})();
