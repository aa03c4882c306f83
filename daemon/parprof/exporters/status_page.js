// The search field of the daemon's status page: rows that do not have what is typed are hidden. What was asked of the
// daemon itself (?find=) is all that it has sent; whoever asks for more goes there.
(() => {
  const field = document.getElementById("search"), found = document.getElementById("found");
  const rows = [...document.querySelectorAll("tbody tr[data-words]")];
  const asked = field.dataset.asked.toLowerCase(), isAll = field.dataset.all === "1";
  const wanted = () => field.value.trim().toLowerCase();
  const address = () => {
    const there = new URL(location.href);
    if (field.value.trim()) there.searchParams.set("find", field.value.trim());
    else there.searchParams.delete("find");
    return there;
  };
  const show = () => {
    const words = wanted();
    let count = 0;
    for (const row of rows) {
      row.hidden = !row.dataset.words.includes(words);
      count += !row.hidden;
    }
    found.textContent = words ? `${count} of ${rows.length}${isAll ? "" : " that are shown: Enter for all"}` : "";
  };
  field.oninput = () => {
    if (!wanted().includes(asked)) location.replace(address());
    else {
      history.replaceState(null, "", address());  // a page that is refreshed keeps it
      show();
    }
  };
  field.onkeydown = event => {
    if (event.key === "Escape") { field.value = ""; field.oninput(); }
    else if (event.key === "Enter" && !isAll) location.assign(address());
  };
  addEventListener("keydown", event => {
    if (event.key === "/" && event.target !== field && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      field.focus();
    }
  });
  field.closest("[hidden]").hidden = false;
  show();
})();
