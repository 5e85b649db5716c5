// Lines over the last hour, as SVG.

import { h, number, s, span } from "./dom.js";

const points = (values, most, width, height, top = 0) => {
  let path = "", gap = true;
  values.forEach((value, at) => {
    if (value === null) { gap = true; return; }
    const x = (at / (values.length - 1)) * width, y = top + height - (value / most) * height;
    path += `${gap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}${gap ? "h.1" : ""}`; // a value by itself is a dot
    gap = false;
  });
  return path;
};

const largest = (...lists) => Math.max(1, ...lists.flat().filter((value) => value !== null));
const sum = (values) => values.reduce((a, b) => a + b, 0);

/** Leaves out the current minute, which is not complete. */
export const whole = (values) => [...values.slice(0, -1), null];

export function spark(ins, outs) {
  if (!ins?.length) return h("span", { class: "soft" }, "–");
  [ins, outs] = [ins.slice(0, -1), outs.slice(0, -1)];
  const most = largest(ins, outs);
  const said = `Last hour: ${number(sum(ins))} in, ${number(sum(outs))} out`;
  return s("svg", { class: "spark", viewBox: "0 0 120 26", preserveAspectRatio: "none", role: "img", "aria-label": said },
    s("path", { class: "a", d: points(ins, most, 120, 22, 2) }), s("path", { class: "b", d: points(outs, most, 120, 22, 2) }));
}

/** lines: [[name, values], [name, values]]; `ms`: the values are durations. */
export function chart(title, lines, firstMinute, { ms = false } = {}) {
  const most = largest(...lines.map(([, values]) => values));
  const highest = Math.max(...lines.flatMap(([, values]) => values.filter((value) => value !== null)), -1);
  const tell = (value) => (value === undefined || value === null ? "–" : ms ? span(value) : number(value));
  const known = (values) => values.filter((value) => value !== null);
  const last = lines.map(([name, values]) => `${name} ${tell(known(values).at(-1))}`).join(", ");
  const hour = (minute) => new Date(minute * 60000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const svg = s("svg", { class: "chart", viewBox: "0 0 300 110", preserveAspectRatio: "none", role: "img", "aria-label": `${title}, last hour. Latest: ${last}. Highest: ${tell(highest < 0 ? null : highest)}` },
    [10, 50, 90].map((y) => s("path", { class: "grid", d: `M0 ${y}H300` })),
    lines.map(([, values], at) => s("path", { class: at ? "b" : "a", d: points(values, most, 300, 80, 10), "vector-effect": "non-scaling-stroke" })));
  return h("figure", { "data-key": title },
    h("figcaption", null, h("strong", null, title), h("span", { class: "small soft" }, highest < 0 ? "nothing yet" : `highest ${tell(highest)}`)),
    svg,
    h("div", { class: "row spread small soft" }, h("span", null, hour(firstMinute)),
      h("span", null, lines.map(([name], at) => [h("span", { class: at ? "key b" : "key" }), name, " "])), h("span", null, "now")));
}
