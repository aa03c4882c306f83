// Light or dark, whatever the system prefers: a button, which is remembered where the browser lets us.
(() => {
  const KEPT = "parprof-theme", NAMES = {"": "as the system", light: "light", dark: "dark"}, root = document.documentElement;
  const button = document.createElement("button");
  let chosen = "";
  try { chosen = localStorage.getItem(KEPT) ?? ""; } catch { /* it may be forbidden */ }
  const show = () => {
    if (!(chosen in NAMES)) chosen = "";
    if (chosen) root.dataset.theme = chosen;
    else delete root.dataset.theme;
    button.textContent = `colours: ${NAMES[chosen]}`;
  };
  button.id = "theme";
  button.type = "button";
  button.onclick = () => {
    const all = Object.keys(NAMES);
    chosen = all[(all.indexOf(chosen) + 1) % all.length];
    try { localStorage.setItem(KEPT, chosen); } catch { /* then only for this page */ }
    show();
    dispatchEvent(new Event("themechange"));
  };
  show();
  document.body.prepend(button);
})();
