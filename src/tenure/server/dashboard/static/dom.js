// Creates elements, and updates a page without losing focus, scroll position or input.
// Text stays text: nothing here, or anywhere in these files, makes HTML from a string.

const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown"];
const SVG = "http://www.w3.org/2000/svg";

/** h("a", {href: "#/", onclick: f}, "text", child, [children]): false and null are left out. */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (HANDLERS.includes(name)) element[name] = value;
    else if (name === "value" || name === "checked") { element[name] = value; element.setAttribute(name, value); }
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child === false || child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Makes the children of `place` equal to `wanted`; elements with the same `data-key`, or the same position and tag, stay. */
export function show(place, ...wanted) {
  const holder = h("div", null, ...wanted);
  morphChildren(place, holder);
}

function morphChildren(old, made) {
  const keyed = new Map();
  for (const child of old.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let at = old.firstChild;
  for (const want of [...made.childNodes]) {
    const key = want.dataset?.key;
    let have = key && keyed.get(key);
    if (have) { if (have !== at) old.insertBefore(have, at); else at = at.nextSibling; }
    else if (at && sameKind(at, want)) { have = at; at = at.nextSibling; }
    if (have) morph(have, want); else old.insertBefore(want, at);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

function sameKind(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.dataset?.key ?? "") === (b.dataset?.key ?? "");
}

function morph(old, made) {
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== made.data) old.data = made.data; return; }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of HANDLERS) old[name] = made[name];
  morphChildren(old, made);
}

// ── formatting ──

export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
export const rate = (value) => (value === null || value === undefined ? "–" : value >= 100 ? number(Math.round(value)) : value.toLocaleString("en", { maximumFractionDigits: 1 }));

let ahead = 0; // how far the store's clock is ahead of this machine's
export function setClock(nowMs) { ahead = nowMs - Date.now(); }
export const now = () => Date.now() + ahead;

export function span(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return `${Math.round(Math.max(0, ms))} ms`;
  for (const [unit, size, until] of [["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172800]]) if (seconds < until) return `${Math.round(seconds / size)} ${unit}`;
  return `${number(Math.round(seconds / 86400))} d`;
}

export function clock(ms) {
  const date = new Date(ms);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

/** A time and its distance from now, which `age` keeps up to date. */
export function when(ms) {
  if (ms === null || ms === undefined) return "–";
  return h("time", { datetime: new Date(ms).toISOString(), title: new Date(ms).toISOString() }, `${clock(ms)} · `, age(ms));
}

export function age(ms) {
  return ms === null || ms === undefined ? "–" : h("span", { class: "nowrap", "data-age": ms }, distance(ms));
}

function distance(ms) {
  const away = ms - now();
  return Math.abs(away) < 1000 ? "now" : away > 0 ? `in ${span(away)}` : `${span(-away)} ago`;
}

export function keepAges() {
  setInterval(() => {
    for (const element of document.querySelectorAll("[data-age]")) {
      const text = distance(Number(element.dataset.age));
      if (element.textContent !== text) element.textContent = text;
    }
  }, 1000);
}

export const state = (name) => h("span", { class: `state ${name}` }, name);
export const size = (bytes) => (bytes === 1 ? "1 byte" : bytes < 10000 ? `${number(bytes)} bytes` : `${number(Math.round(bytes / 1024))} KiB`);
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** A table whose rows become cards at phone width. Columns: [title, {n, wide, sort}]. */
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  const head = h("tr", null, columns.map(([title, o = {}]) => h("th", { scope: "col", class: o.n ? "n" : null }, title)));
  return h("div", { class: "scroll" }, h("table", { class: "stack", "aria-label": caption }, h("thead", null, head), h("tbody", null,
    rows.map(({ key, cells }) => h("tr", { "data-key": key }, cells.map((cell, at) => {
      const [title, o = {}] = columns[at];
      return h("td", { class: [o.n ? "n" : "", o.wide ? "wide" : ""].join(" ").trim() || null, "data-label": title }, cell);
    }))))));
}
