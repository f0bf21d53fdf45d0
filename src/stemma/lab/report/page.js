// Tabs and sorted columns for pages that are whole without this script: nothing is fetched, nothing is kept.
"use strict";

// Tabs as the ARIA practices describe them: arrow keys, Home and End move, one tab stop for all.
(() => {
  const panels = [...document.querySelectorAll("section.panel")];
  if (panels.length < 2) return;
  const list = document.createElement("div");
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", "Parts of this report");
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

  const select = (chosen) => tabs.forEach((tab, place) => {
    tab.setAttribute("aria-selected", String(place === chosen));
    tab.tabIndex = place === chosen ? 0 : -1;
    // "until-found": the browser's own search still looks into hidden panels, and tells us where it found something
    if (place === chosen) panels[place].removeAttribute("hidden");
    else panels[place].setAttribute("hidden", "until-found");
  });
  const open = (place) => {
    select(place);
    history.replaceState(null, "", `#${panels[place].id}`);
  };
  const named = () => panels.findIndex((panel) => `#${panel.id}` === location.hash);

  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => open(place));
    panels[place].addEventListener("beforematch", () => open(place));
  });
  list.addEventListener("keydown", (event) => {
    const here = tabs.indexOf(document.activeElement);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const place = (to + tabs.length) % tabs.length;
    open(place);
    tabs[place].focus();
  });
  addEventListener("hashchange", () => { if (named() >= 0) select(named()); });
  select(Math.max(0, named()));
})();

// Sorting by any column: a second press turns the order round; cells without a number stay last either way.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const compare = (a, b, way) => {
    if (a.dataset.sort === undefined || b.dataset.sort === undefined) {
      return way * a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
    }
    if (!a.dataset.sort || !b.dataset.sort) return Number(!a.dataset.sort) - Number(!b.dataset.sort);
    return way * (Number(a.dataset.sort) - Number(b.dataset.sort));
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
      const way = order === "ascending" ? 1 : -1;
      body.append(...[...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], way)));
    });
  });
}
