// Tabs and sortable tables. Pages are complete without this script. It loads and stores nothing.
"use strict";

// Tabs as in the ARIA Authoring Practices: arrow keys, Home and End move; the list is one tab stop.
(() => {
  const panels = [...document.querySelectorAll("section.panel")];
  if (panels.length < 2) return;
  const list = document.createElement("div");
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", "Sections of this report");
  const tabs = panels.map((panel) => {
    const tab = document.createElement("button");
    tab.type = "button";
    tab.id = `tab-${panel.id}`;
    tab.textContent = panel.querySelector("h2").textContent;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    list.append(tab);
    return tab;
  });
  panels[0].before(list);

  const select = (selected) => tabs.forEach((tab, index) => {
    tab.setAttribute("aria-selected", String(index === selected));
    tab.tabIndex = index === selected ? 0 : -1;
    // "until-found": the browser's page search also searches hidden panels and fires "beforematch" on a hit
    if (index === selected) panels[index].removeAttribute("hidden");
    else panels[index].setAttribute("hidden", "until-found");
  });
  const open = (index) => {
    select(index);
    history.replaceState(null, "", `#${panels[index].id}`);
  };
  const fromHash = () => panels.findIndex((panel) => `#${panel.id}` === location.hash);

  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => open(index));
    panels[index].addEventListener("beforematch", () => open(index));
  });
  list.addEventListener("keydown", (event) => {
    const focused = tabs.indexOf(document.activeElement);
    const target = { ArrowRight: focused + 1, ArrowLeft: focused - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const index = (target + tabs.length) % tabs.length;
    open(index);
    tabs[index].focus();
  });
  addEventListener("hashchange", () => { if (fromHash() >= 0) select(fromHash()); });
  select(Math.max(0, fromHash()));
})();

// Sort by any column; a second click reverses the order. Cells without a number are always last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const compare = (a, b, direction) => {
    if (a.dataset.sort === undefined || b.dataset.sort === undefined) {
      return direction * a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
    }
    if (!a.dataset.sort || !b.dataset.sort) return Number(!a.dataset.sort) - Number(!b.dataset.sort);
    return direction * (Number(a.dataset.sort) - Number(b.dataset.sort));
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const direction = order === "ascending" ? 1 : -1;
      body.append(...[...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], direction)));
    });
  });
}
