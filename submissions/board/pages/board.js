// Sorts, filters and draws what the page holds. Text from entries is only ever set as text, never as markup.
"use strict";

const STEP = 100; // rows that are written at a time
const MOST = 4; // systems side by side
const FEW = 40; // dots that get their intervals drawn, and devices that are listed at first
const HOTTEST = 10; // times as fast as the baseline, or as slow: the full tint
const LOGARITHMIC_FROM = 12; // times that the largest value of an axis exceeds the smallest
const UNKNOWN = "–";

const $ = id => document.getElementById(id);
const source = JSON.parse($("data").textContent);
const systems = source.rows.map(([words, score, rates, price, who, more, cells, alone], at) => {
  const [href, rank, system, of, value, half, other, watts, priced, worth, grade, tuning, measured, stale, low, mid, high, lead, reach] = words;
  return {
    at, href, rank, system, of, value, half, other, watts, price: priced, worth, grade, tuning, measured, stale, alone, low, mid, high, lead, reach,
    place: score[0], score: { value: score[1], low: score[2] ?? score[1], high: score[3] ?? score[1] },
    tx: rates[0], mx: rates[1], power: rates[2], amount: price[0], currency: price[1], each: price[2],
    organisation: who[0], kinds: who[1], availability: who[2], runs: who[3], level: who[4],
    provisioned: more[0], devices: more[1], versions: more[2], cells,
    text: [system, of, more[1], grade, tuning].join(" ").toLowerCase(),
  };
});
const ranked = systems.filter(each => each.place !== null);
const chosen = new Set();
let shown = ranked;
let sorted = { by: "rank", down: false };

function make(name, content, attributes = {}) {
  const element = document.createElement(name);
  if (content !== undefined) element.append(...[content].flat());
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// The table

const KEYS = {
  rank: each => each.at, system: each => each.system.toLowerCase(), value: each => each.score.value,
  other: each => (source.metric === "MX" ? each.tx : each.mx), watts: each => each.power,
  price: each => (each.amount === null ? null : [each.currency, each.amount]), measured: each => each.measured,
  worth: each => (each.each === null ? null : [each.currency, each.each]),
};
const DOWN_FIRST = new Set(["value", "other", "measured"]);
for (const at of systems.length ? systems[0].alone.keys() : []) {
  KEYS[`suite${at + 1}`] = each => best(each, at)?.[2];
  DOWN_FIRST.add(`suite${at + 1}`);
}

function best(system, suite) {
  return system.cells.filter(one => one[1] === suite).sort((a, b) => b[2] - a[2])[0];
}

function compared(one, other) {
  if (Array.isArray(one)) return one[0] === other[0] ? one[1] - other[1] : one[0] < other[0] ? -1 : 1;
  return one < other ? -1 : one > other ? 1 : 0;
}

function order(list) {
  const key = KEYS[sorted.by];
  const known = list.filter(each => key(each) !== null && key(each) !== undefined);
  const unknown = list.filter(each => key(each) === null || key(each) === undefined);
  known.sort((a, b) => (sorted.down ? -1 : 1) * compared(key(a), key(b)) || a.at - b.at);
  return [...known, ...unknown];
}

function write(system, before) {
  const row = $("row").content.firstElementChild.cloneNode(true);
  const put = (where, text) => { row.querySelector(where).textContent = text; };
  row.dataset.at = system.at;
  row.className = sorted.by === "rank" && before && before.place === system.place ? "same" : "first";
  put(".r", system.rank);
  put(".s a", system.system);
  row.querySelector(".s a").href = system.href;
  put(".s small", system.of);
  const [span, dot] = row.querySelectorAll(".span, .dot");
  const band = row.querySelector(".lead");
  band.setAttribute("x", `${system.lead}%`);
  band.setAttribute("width", `${system.reach}%`);
  if (!source.logarithmic) row.querySelector(".bar").setAttribute("width", `${system.mid}%`);
  span.setAttribute("x1", `${system.low}%`);
  span.setAttribute("x2", `${system.high}%`);
  dot.setAttribute("cx", `${system.mid}%`);
  put(".v span", system.value);
  put(".v small", system.half);
  put(".o", system.other);
  put(".w", system.watts);
  row.querySelectorAll(".u").forEach((cell, at) => { cell.textContent = system.alone[at]; });
  put(".e span", system.price);
  put(".e small", system.worth && `${system.worth} per mix/h`);
  put(".d span", system.measured);
  put(".d .warn", system.stale ? "stale" : "");
  row.querySelector(".d .warn").title = system.stale;
  put(".d .class", `${system.grade}, ${system.tuning}`);
  const box = row.querySelector("input");
  box.setAttribute("aria-label", `compare ${system.system}`);
  box.disabled = false;
  box.checked = chosen.has(system);
  return row;
}

const table = $("ranked");
const body = table && table.tBodies[0];

function extend(count) {
  const from = body.rows.length;
  const rows = shown.slice(from, from + count).map((each, at) => write(each, shown[from + at - 1]));
  body.append(...rows);
  $("more").hidden = body.rows.length >= shown.length;
  $("more").firstElementChild.textContent = `Show all ${shown.length.toLocaleString("en")}`;
}

let filling = 0;

function all() {
  extend(5 * STEP); // a part in each frame: ten thousand rows at once would stop the page for seconds
  filling = body.rows.length < shown.length ? requestAnimationFrame(all) : 0;
}

function refresh() {
  if (!table) return;
  cancelAnimationFrame(filling);
  const form = $("tools");
  const asked = name => form.elements[name].value.trim();
  const words = asked("q").toLowerCase().split(/\s+/).filter(Boolean);
  const most = parseFloat(asked("price"));
  shown = order(ranked.filter(each =>
    words.every(word => each.text.includes(word))
    && (!asked("organisation") || each.organisation === asked("organisation"))
    && (!asked("kind") || each.kinds.includes(asked("kind")))
    && (!asked("tuning") || each.tuning === asked("tuning"))
    && (!asked("grade") || each.grade === asked("grade"))
    && (!asked("currency") || each.currency === asked("currency"))
    && (!(most >= 0) || (each.amount !== null && each.amount <= most))
    && (!form.elements.fresh.checked || !each.stale)));
  body.replaceChildren();
  extend(STEP);
  $("none").hidden = shown.length > 0;
  $("count").textContent = shown.length === ranked.length
    ? `${ranked.length.toLocaleString("en")} systems` : `${shown.length.toLocaleString("en")} of ${ranked.length.toLocaleString("en")} systems; ranks count the whole board`;
  for (const head of table.tHead.querySelectorAll("[data-sort]")) {
    if (head.dataset.sort === sorted.by) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  form.elements.sort.value = sorted.by === "value" ? "rank" : sorted.by;
  remember(form);
  clouds();
  heat();
}

// The address holds the filter and the order, so that a link shows the same rows.

const ASKED = ["q", "organisation", "kind", "tuning", "grade", "currency", "price"];

function remember(form) {
  const told = new URLSearchParams(ASKED.map(name => [name, form.elements[name].value.trim()]).filter(([, value]) => value));
  if (form.elements.fresh.checked) told.set("fresh", "yes");
  if (sorted.by !== "rank" || sorted.down) told.set("sort", `${sorted.down ? "-" : ""}${sorted.by}`);
  const words = String(told);
  history.replaceState(null, "", words ? `#${words}` : location.href.split("#")[0]);
}

function recall(form) {
  const told = new URLSearchParams(location.hash.slice(1));
  for (const name of ASKED) {
    const field = form.elements[name];
    field.value = told.get(name) ?? "";
    if (field.selectedIndex === -1) field.value = ""; // nobody is called so
  }
  form.elements.fresh.checked = told.has("fresh");
  const [, down, by] = /^(-?)(.*)$/.exec(told.get("sort") ?? "");
  sorted = Object.hasOwn(KEYS, by) ? { by, down: down === "-" } : { by: "rank", down: false };
}

function sortBy(name) {
  sorted = { by: name, down: sorted.by === name ? !sorted.down : DOWN_FIRST.has(name) };
  refresh();
}

function options(select, values) {
  select.append(...[...new Set(values)].filter(Boolean).sort().map(each => make("option", each)));
  if (select.options.length < 3) select.parentElement.hidden = true;
}

// Side by side

function toggle(box) {
  const system = systems[box.closest("tr").dataset.at];
  if (box.checked) chosen.add(system); else chosen.delete(system);
  tray();
  if (!$("beside").hidden) beside();
  mark();
}

function tray() {
  const names = [...chosen].map(each => each.system).join(", ");
  const words = chosen.size === 1 ? "Choose another one to compare with" : chosen.size > MOST ? `At most ${MOST} can be compared:` : "Compare";
  $("tray").hidden = !chosen.size;
  $("tray").firstElementChild.textContent = chosen.size ? `${words} ${names}` : "";
  $("tray").querySelector("button").disabled = chosen.size < 2 || chosen.size > MOST;
}

function tick() {
  for (const box of document.querySelectorAll(".board input")) box.checked = chosen.has(systems[box.closest("tr").dataset.at]);
}

function digits(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
}

function times(one, base) {
  return one > 0 && base > 0 ? `${digits(one / base)} ×` : UNKNOWN;
}

function cell(main, small) {
  return make("td", small ? [main, make("small", small)] : [main]);
}

function beside() {
  const list = [...chosen];
  const section = $("beside");
  section.hidden = list.length < 2 || list.length > MOST;
  if (section.hidden) return;
  const base = list[0];
  const line = (name, told) => {
    const row = make("tr", [make("th", name, { scope: "row" })]);
    row.append(...list.map(each => told(each, each === base)));
    return row;
  };
  const other = source.metric === "MX" ? "mix/h" : "mix/kWh";
  const otherOf = each => (source.metric === "MX" ? each.tx : each.mx);
  const verdict = each => (each.score.low <= base.score.high && base.score.low <= each.score.high
    ? "a tie: the intervals overlap" : `${times(each.score.value, base.score.value)} the first`);
  const head = make("tr", [make("td", "")]);
  head.append(...list.map(each => make("th", [make("a", each.system, { href: each.href }), make("small", each.organisation)], { scope: "col" })));
  const plain = told => each => cell(told(each) || UNKNOWN);
  const rows = [
    line("rank", plain(each => each.rank || "not ranked")),
    line(source.unit, (each, first) => cell(`${each.value} ${each.half}`, first ? "the first" : verdict(each))),
    line(other, (each, first) => cell(each.other, first || !otherOf(each) || !otherOf(base) ? "" : `${times(otherOf(each), otherOf(base))} the first`)),
    line("power", (each, first) => cell(each.watts, first || !each.power || !base.power ? "" : `${times(each.power, base.power)} the first`)),
    line("price, declared", each => cell(each.price, each.worth && `${each.worth} per mix/h`)),
    line("provisioned, declared", plain(each => each.provisioned)),
    line("devices", plain(each => each.devices)),
    ...source.suites.map((name, suite) => line(`${name} alone, best device`, (each, first) => {
      const [one, its] = [best(each, suite), best(base, suite)];
      return one ? cell(one[3], first || !its ? source.names[one[0]] : `${times(one[2], its[2])} the first; ${source.names[one[0]]}`) : cell(UNKNOWN);
    })),
    line("class", plain(each => `${each.grade}, ${each.tuning}`)),
    line("EE HPC level", plain(each => (each.level === null ? "" : each.level ? `level ${each.level}` : "below level 1"))),
    line("availability", plain(each => each.availability)),
    line("runs", plain(each => `${each.runs}`)),
    line("measured", (each) => cell(each.measured, each.stale && `stale: ${each.stale}`)),
    line("versions", plain(each => each.versions)),
  ];
  section.querySelector("table").replaceChildren(make("thead", head), make("tbody", rows));
}

// Axes

function axis(values, start, end) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low > 0 && high > low * LOGARITHMIC_FROM) {
    const [from, to] = [Math.log(low / 1.2), Math.log(high * 1.2)];
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const factor of high > low * 1000 ? [1] : [1, 3]) ticks.push(factor * 10 ** power);
    const at = value => start + (Math.log(value) - from) / (to - from) * (end - start);
    return { at, ticks: ticks.filter(each => each >= low / 1.2 && each <= high * 1.2), words: ", logarithmic" };
  }
  const most = (high || 1) * 1.06, step = nice(most / 4);
  const ticks = [];
  for (let count = 0; count * step <= most; count++) ticks.push(count * step);
  return { at: value => start + value / most * (end - start), ticks, words: "" };
}

function nice(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find(each => each * power >= least * 0.999) * power;
}

function label(value) {
  return value >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(3)}`;
}

// What it costs: the score against what has to be given for it

const WIDE = 340, TALL = 262, LEFT = 46, RIGHT = 10, TOP = 34, BOTTOM = 40;
let panels = [];

function clouds() {
  const prices = shown.filter(each => each.amount !== null);
  const counts = new Map();
  for (const each of prices) counts.set(each.currency, (counts.get(each.currency) || 0) + 1);
  const currency = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(each => each[0])[0];
  const wanted = [
    source.metric === "MX" ? ["against throughput", "mix/h", each => each.tx] : ["against efficiency", "mix/kWh", each => each.mx],
    ["against power", "W", each => each.power],
    ["against declared price", currency, each => (each.currency === currency ? each.amount : null)],
  ];
  panels = wanted.map(([name, unit, x]) => cloud(name, unit, x)).filter(Boolean);
  $("clouds").querySelector(".panels").replaceChildren(...panels.map(each => each.figure));
  $("clouds").hidden = !panels.length;
  mark();
}

function cloud(name, unit, x) {
  const list = shown.filter(each => x(each) > 0 && each.score.value > 0);
  if (list.length < 2) return null;
  const wide = axis(list.map(x), LEFT, WIDE - RIGHT), tall = axis(list.map(each => each.score.value), TALL - BOTTOM, TOP);
  const svg = draw("svg", { class: "cloud", viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": `${source.unit} ${name}, ${list.length} systems; the table has the figures` });
  for (const each of tall.ticks) {
    svg.append(draw("path", { class: "grid", d: `M${LEFT} ${tall.at(each)}H${WIDE - RIGHT}` }), draw("text", { class: "end", x: LEFT - 6, y: tall.at(each) + 4 }, label(each)));
  }
  svg.append(draw("path", { class: "axis", d: `M${LEFT} ${TALL - BOTTOM}H${WIDE - RIGHT}` }));
  for (const each of wide.ticks) svg.append(draw("text", { class: "middle", x: wide.at(each), y: TALL - BOTTOM + 16 }, label(each)));
  svg.append(draw("text", { x: LEFT, y: 11 }, `${source.unit}${tall.words}`), draw("text", { class: "end", x: WIDE - RIGHT, y: TALL - 6 }, `${unit}${wide.words}`));
  const points = list.map(each => ({ system: each, x: wide.at(x(each)), y: tall.at(each.score.value) }));
  if (list.length <= FEW) {
    const least = tall.words ? Math.min(...list.map(each => each.score.value)) / 1.2 : 0;
    svg.append(draw("path", { class: "arms", "stroke-width": 2, d: points.map(each => `M${each.x} ${tall.at(Math.max(each.system.score.low, least))}V${tall.at(each.system.score.high)}`).join("") }));
  }
  const size = list.length <= FEW ? 8 : list.length <= 1000 ? 5 : 3;
  svg.append(draw("path", { class: "dots", "stroke-width": size, d: points.map(each => `M${each.x.toFixed(1)} ${each.y.toFixed(1)}h.01`).join("") }));
  const marked = draw("path", { class: "chosen", "stroke-width": 9, d: "" }), names = draw("g", {}), here = draw("circle", { class: "here", r: 7, visibility: "hidden" });
  svg.append(marked, names, here);
  const panel = { svg, points, marked, names, here };
  svg.addEventListener("pointermove", event => point(nearest(panel, event)));
  svg.addEventListener("pointerleave", () => point(null));
  svg.addEventListener("click", event => {
    const system = nearest(panel, event);
    if (!system) return;
    if (chosen.has(system)) chosen.delete(system); else chosen.add(system);
    tick(); tray(); mark();
    if (!$("beside").hidden) beside();
  });
  panel.figure = make("figure", [make("figcaption", [`${source.unit} `, make("span", name)]), svg]);
  return panel;
}

function nearest(panel, event) {
  const box = panel.svg.getBoundingClientRect(), scale = WIDE / box.width;
  const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  let found = null, least = 24 ** 2;
  for (const each of panel.points) {
    const far = (each.x - x) ** 2 + (each.y - y) ** 2;
    if (far < least) [found, least] = [each.system, far];
  }
  return found;
}

function point(system) {
  for (const panel of panels) {
    const at = system && panel.points.find(each => each.system === system);
    panel.here.setAttribute("visibility", at ? "visible" : "hidden");
    if (at) panel.here.setAttribute("cx", at.x);
    if (at) panel.here.setAttribute("cy", at.y);
  }
  $("clouds").querySelector(".pointed").textContent = system
    ? `${system.rank ? `Rank ${system.rank}: ` : ""}${system.system}, ${system.value} ${source.unit} ${system.half}, ${system.watts}, ${system.price}`
    : "Point at a dot to see which system it is; click to compare it.";
}

function mark() {
  for (const panel of panels) {
    const those = panel.points.filter(each => chosen.has(each.system));
    panel.marked.setAttribute("d", those.map(each => `M${each.x} ${each.y}h.01`).join(""));
    const best = panel.points.length <= FEW ? panel.points.filter(each => each.system.place === 1).slice(0, 1) : [];
    const named = those.length ? those : best;
    const taken = [];
    panel.names.replaceChildren(...named.map(each => {
      const right = each.x > WIDE * 0.6;
      let y = each.y + 4;
      while (taken.some(other => Math.abs(other - y) < 12)) y += 12;
      taken.push(y);
      const name = each.system.system;
      return draw("text", { class: right ? "value end" : "value", x: right ? each.x - 9 : each.x + 9, y }, name.length > 30 ? `${name.slice(0, 29)}…` : name);
    }));
  }
}

// Devices by suite

let allDevices = false;

function heat() {
  const best = new Map();
  for (const system of shown)
    for (const [device, suite, rate, words] of system.cells) {
      if (!best.has(device)) best.set(device, []);
      const cells = best.get(device);
      if (!cells[suite] || rate > cells[suite].rate) cells[suite] = { rate, words, system };
    }
  const section = $("heat");
  section.hidden = best.size < 2;
  if (section.hidden) return;
  const select = $("baseline"), picked = select.value;
  const devices = [...best.keys()];
  if (!devices.some(each => String(each) === picked)) devices.slice(0, 1).forEach(each => { select.dataset.at = each; });
  else select.dataset.at = picked;
  const named = devices.map(each => [source.names[each], each]).sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0));
  select.replaceChildren(...named.map(([name, each]) => make("option", name, { value: each })));
  select.value = select.dataset.at;
  const base = best.get(Number(select.value));
  const suites = source.suites.map((name, at) => [name, at]).filter(([, at]) => devices.some(each => best.get(each)[at]));
  const head = make("tr", [make("th", "device, alone", { scope: "col" }), ...suites.map(([name]) => make("th", name, { scope: "col", class: "number" }))]);
  const listed = allDevices ? devices : devices.slice(0, FEW);
  const rows = listed.map(device => make("tr", [
    make("th", source.names[device], { scope: "row" }),
    ...suites.map(([, at]) => {
      const one = best.get(device)[at], its = base[at];
      if (!one) return make("td", UNKNOWN);
      if (!its || !(its.rate > 0)) return make("td", [UNKNOWN, make("small", one.words)]);
      const ratio = one.rate / its.rate;
      const td = make("td", [`${digits(ratio)} ×`, make("small", one.words)], { title: one.system.system, class: ratio < 1 ? "behind" : "" });
      td.style.setProperty("--tint", Math.min(100, Math.abs(Math.log(ratio)) / Math.log(HOTTEST) * 100));
      return td;
    }),
  ]));
  section.querySelector("table").replaceChildren(make("thead", head), make("tbody", rows));
  const more = section.querySelector(".more");
  more.hidden = listed.length === devices.length;
  more.firstElementChild.textContent = `Show all ${devices.length.toLocaleString("en")} devices`;
}

// What a reader does

if (systems.length > 1) document.documentElement.dataset.comparable = "yes";
for (const box of document.querySelectorAll(".board input")) box.disabled = false;
document.addEventListener("change", event => { if (event.target.matches(".board input")) toggle(event.target); });
const [compare, clear] = $("tray").querySelectorAll("button");
compare.addEventListener("click", () => { beside(); $("beside").scrollIntoView(); $("beside").focus({ preventScroll: true }); });
clear.addEventListener("click", () => { chosen.clear(); tick(); tray(); beside(); mark(); });
if (table) {
  const form = $("tools");
  options(form.elements.organisation, ranked.map(each => each.organisation));
  options(form.elements.kind, ranked.flatMap(each => each.kinds));
  options(form.elements.currency, ranked.map(each => each.currency));
  if (!ranked.some(each => each.amount !== null)) form.elements.price.parentElement.hidden = true;
  $("filter").hidden = ranked.length < 2;
  recall(form);
  addEventListener("hashchange", () => { if (location.hash.includes("=")) { recall(form); refresh(); } });
  $("filter").open = location.hash.includes("=") || matchMedia("(min-width: 48rem)").matches;
  let waiting = 0;
  form.addEventListener("input", event => {
    if (event.target.name === "sort") return;
    clearTimeout(waiting);
    waiting = setTimeout(refresh, ranked.length > 1000 ? 120 : 0);
  });
  form.elements.sort.addEventListener("change", event => { sorted = { by: event.target.value, down: DOWN_FIRST.has(event.target.value) }; refresh(); });
  form.addEventListener("submit", event => event.preventDefault());
  for (const head of table.tHead.querySelectorAll("[data-sort]")) {
    const button = make("button", [...head.childNodes], { type: "button" });
    button.addEventListener("click", () => sortBy(head.dataset.sort));
    head.replaceChildren(button);
  }
  $("left")?.remove();
  $("more").firstElementChild.addEventListener("click", all);
  new IntersectionObserver(entries => { if (entries[0].isIntersecting && !$("more").hidden && scrollY > 0) extend(STEP); }, { rootMargin: "600px" }).observe($("more"));
  $("baseline").addEventListener("change", heat);
  $("heat").querySelector(".more button").addEventListener("click", () => { allDevices = true; heat(); });
  refresh();
}
document.documentElement.dataset.ready = "yes";
