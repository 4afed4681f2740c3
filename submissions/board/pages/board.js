// Sorts and filters the rows that the page holds.
"use strict";

const table = document.getElementById("ranked");
const form = document.getElementById("tools");
const rows = table ? [...table.tBodies[0].rows] : [];
let sorted = { at: 0, down: false };

function key(row) {
  const cell = row.cells[sorted.at];
  return cell.dataset.key ?? cell.textContent.trim().toLowerCase();
}

function compared(one, other) {
  const [first, second] = [key(one), key(other)];
  if (!first || !second) return !first - !second; // what is not known comes last in both orders
  const numbers = Number(first) - Number(second);
  return (sorted.down ? -1 : 1) * (Number.isNaN(numbers) ? (first > second) - (first < second) : numbers);
}

function passes(row, asked) {
  const words = asked.get("q").toLowerCase().split(/\s+/).filter(Boolean);
  return words.every(word => row.textContent.toLowerCase().includes(word))
    && ["organisation", "tuning", "grade"].every(name => !asked.get(name) || row.dataset[name] === asked.get(name))
    && (!asked.get("kind") || row.dataset.kinds.split(" ").includes(asked.get("kind")))
    && (!asked.get("fresh") || !row.dataset.stale);
}

function refresh() {
  const asked = new FormData(form);
  for (const row of rows) row.hidden = !passes(row, asked);
  table.tBodies[0].append(...[...rows].sort(compared)); // rows that are equal keep the order of their ranks
  const left = rows.filter(row => !row.hidden).length;
  document.getElementById("none").hidden = left > 0;
  document.getElementById("count").textContent = left === rows.length
    ? `${rows.length.toLocaleString("en")} systems` : `${left.toLocaleString("en")} of ${rows.length.toLocaleString("en")} systems; ranks count the whole board`;
  for (const head of table.tHead.querySelectorAll("[data-down]")) {
    if (head.cellIndex === sorted.at) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  remember(asked);
}

// The address holds the filter and the order, so that a link shows the same rows.

function remember(asked) {
  const told = new URLSearchParams([...asked].filter(([, value]) => value.trim()));
  if (sorted.at || sorted.down) told.set("sort", `${sorted.down ? "-" : ""}${sorted.at}`);
  history.replaceState(null, "", String(told) ? `#${told}` : location.href.split("#")[0]);
}

function recall() {
  const told = new URLSearchParams(location.hash.slice(1));
  for (const name of ["q", "organisation", "kind", "tuning", "grade"]) {
    const field = form.elements[name];
    field.value = told.get(name) ?? "";
    if (field.selectedIndex === -1) field.value = ""; // nobody is called so
  }
  form.elements.fresh.checked = told.has("fresh");
  const [, down, at] = /^(-?)(\d*)$/.exec(told.get("sort") ?? "") ?? [];
  sorted = table.tHead.rows[0].cells[at]?.hasAttribute("data-down") ? { at: Number(at), down: down === "-" } : { at: 0, down: false };
}

function options(select, values) {
  select.append(...[...new Set(values)].sort().map(value => new Option(value)));
  if (select.options.length < 3) select.parentElement.hidden = true;
}

if (table) {
  options(form.elements.organisation, rows.map(row => row.dataset.organisation));
  options(form.elements.kind, rows.flatMap(row => row.dataset.kinds.split(" ")));
  form.hidden = rows.length < 2;
  recall();
  addEventListener("hashchange", () => { recall(); refresh(); });
  form.addEventListener("input", refresh);
  form.addEventListener("submit", event => event.preventDefault());
  for (const head of table.tHead.querySelectorAll("[data-down]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => {
      const at = head.cellIndex;
      sorted = { at, down: sorted.at === at ? !sorted.down : head.dataset.down === "yes" };
      refresh();
    });
    head.replaceChildren(button);
  }
  refresh();
}
document.documentElement.dataset.ready = "yes";
