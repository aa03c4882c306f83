// What each thread did: a strip each, all to one scale.
const THREAD_KINDS = [
  ["useful", "useful work", m => Math.max(0, m("work") - m("overhead"))], ["overhead", "overhead", m => m("overhead")],
  ["spin", "spin", m => m("spin")], ["ready", "waiting for a CPU", m => m("ready")],
  ["wait", "asleep", m => m("wait")],
];
const threadView = {
  layout() {
    if (this.made) return;
    this.made = true;
    const rows = threads.rows.map(([name, values]) => {
      const numbers = Object.fromEntries(metrics.map((metric, column) => [metric.name, values[column]]));
      const of = key => numbers[key] ?? 0;
      return {name, of, parts: THREAD_KINDS.map(([, , value]) => value(of)), idle: of("idleness") + of("stall")};
    });
    const most = Math.max(1, ...rows.map(({parts}) => parts.reduce((a, b) => a + b, 0)));
    const seconds = value => `${(value / 1e6).toFixed(2)} s`;
    const isSeen = part => part >= most / 2000;
    const known = THREAD_KINDS.filter((_, kind) => rows.some(({parts}) => isSeen(parts[kind])));
    byId("kinds").replaceChildren(...known.map(([kind, label]) =>
      made("span", {}, made("i", {className: kind}), ` ${label}`)), made("span", {textContent: "idle: core time idle while it worked"}));
    byId("strips").replaceChildren(...rows.map(({name, parts, idle}) => {
      const strip = made("div", {className: "strip"});
      const told = [];
      THREAD_KINDS.forEach(([kind, label], at) => {
        if (!isSeen(parts[at])) return;
        told.push(`${label} ${seconds(parts[at])}`);
        const part = made("i", {className: kind, title: told.at(-1)});
        part.style.width = 100 * parts[at] / most + "%";
        strip.append(part);
      });
      strip.setAttribute("role", "img");
      strip.setAttribute("aria-label", told.join(", "));
      return made("div", {className: "thread"}, made("span", {className: "who", textContent: name, title: name}), strip,
                  made("small", {textContent: [...told, `idle ${seconds(idle)}`].join(", ")}));
    }));
    if (!rows.length) byId("strips").textContent = "There are no samples of threads.";
    if (threads.more) byId("strips").append(made("p", {className: "faint", textContent: `${threads.more} more threads did less.`}));
  },
};
