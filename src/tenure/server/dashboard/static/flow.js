// The graph of jobs that a job is part of, coloured by state; for a large one, counts.

import { age, h, number, plural, s, show, state, table } from "./dom.js";
import { Live } from "./net.js";
import { queueLink } from "./overview.js";

/** Sizes in pixels: of jobs with names, and of small squares for a flow of more than LARGE jobs. */
const NAMED = { width: 168, height: 46, right: 64, down: 12, rows: 12 };
const SMALL = { width: 22, height: 22, right: 10, down: 6, rows: 20 };
const LARGE = 40, BETWEEN = 56, EDGE = 8;

export const flowLink = (tenant, queue, id) => `#/flow/${encodeURIComponent(tenant)}/${encodeURIComponent(queue)}/${id}`;
const jobLink = (tenant, node) => `#/job/${encodeURIComponent(tenant)}/${encodeURIComponent(node.queue)}/${node.id}`;

export function flow(page, tenant, queue, id) {
  page.title(`Flow of ${id}`);
  page.live(new Live("flow", { tenant, queue, id }, render, page.failed));

  function render(view) {
    show(page.main,
      h("h1", { tabindex: "-1" }, "Flow of job ", h("span", { class: "mono" }, id)),
      h("p", null, h("a", { href: `#/job/${encodeURIComponent(tenant)}/${encodeURIComponent(queue)}/${id}` }, "The job"), " · ", h("a", { href: queueLink(tenant, queue) }, `${tenant} / ${queue}`)),
      h("section", { "data-key": "graph" }, h("h2", null, view.more ? `More than ${plural(view.jobs, "job")}` : plural(view.jobs, "job")),
        h("p", { class: "legend", role: "status" }, totals(view.counts).map(([name, jobs]) => h("span", { "data-key": name }, state(name), ` ${number(jobs)} `))),
        view.more ? h("p", { class: "notice" }, `This flow is too large to draw. Below are the ${number(view.jobs)} jobs nearest to this one, in numbers.`)
          : h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Graph" }, graph(view.nodes, tenant, id)),
        !view.more && h("p", { class: "small soft" }, "From left to right: jobs wait for those that lines lead from. Jobs that have ended and are no longer kept are “gone”.")),
      view.more && h("section", { "data-key": "numbers" }, h("h2", null, "By queue and state"),
        table("Jobs by queue and state", [["Queue", { wide: true }], ["State"], ["Jobs", { n: true }]], view.counts.map((row) => ({ key: `${row.queue}/${row.state}`, cells: [row.queue, state(row.state), number(row.jobs)] })), "None.")),
      !view.more && h("section", { "data-key": "jobs" }, h("h2", null, "Jobs"),
        table("Jobs of the flow", [["Job", { wide: true }], ["Queue"], ["State"], ["Waits for", { n: true }], ["Created"], ["Ended"], ["Error", { wide: true }]], view.nodes.map((node) => ({
          key: node.id,
          cells: [node.linked ? h("a", { class: "mono", href: jobLink(tenant, node) }, node.id) : h("span", { class: "mono" }, node.id), node.queue, state(node.state), number(node.parents?.length ?? 0), age(node.created_at_ms), age(node.ended_at_ms), node.error ?? ""],
        })), "None.")));
  }
}

function totals(counts) {
  const found = new Map();
  for (const { state: name, jobs } of counts) found.set(name, (found.get(name) ?? 0) + jobs);
  return [...found];
}

/** Positions in pixels, by id. A layer of many jobs takes several columns. */
function places(nodes, size) {
  const columns = [];
  for (const node of nodes) columns[node.layer] = Math.max(columns[node.layer] ?? 0, Math.ceil((node.place + 1) / size.rows));
  const begins = [EDGE];
  for (const [layer, count] of columns.entries()) begins[layer + 1] = begins[layer] + count * (size.width + size.right) - size.right + BETWEEN;
  const at = new Map();
  for (const node of nodes) at.set(node.id, { x: begins[node.layer] + Math.floor(node.place / size.rows) * (size.width + size.right), y: EDGE + (node.place % size.rows) * (size.height + size.down) });
  return at;
}

function graph(nodes, tenant, current) {
  const size = nodes.length > LARGE ? SMALL : NAMED;
  const at = places(nodes, size);
  const right = Math.max(...[...at.values()].map((place) => place.x)) + size.width + EDGE, down = Math.max(...[...at.values()].map((place) => place.y)) + size.height + EDGE;
  const lines = nodes.flatMap((node) => (node.parents ?? []).map((parent) => {
    const from = at.get(parent), to = at.get(node.id), y = size.height / 2, middle = (from.x + size.width + to.x) / 2;
    return s("path", { class: size === SMALL ? "line faint" : "line", "data-key": `${parent}-${node.id}`, d: `M${from.x + size.width} ${from.y + y}C${middle} ${from.y + y} ${middle} ${to.y + y} ${to.x} ${to.y + y}` });
  }));
  return s("svg", { class: "flow", width: right, height: down, viewBox: `0 0 ${right} ${down}`, role: "group", "aria-label": "Jobs, and which waits for which" },
    lines, nodes.map((node) => box(node, at.get(node.id), size, tenant, current)));
}

function box(node, place, size, tenant, current) {
  const label = `Job ${node.id} of ${node.queue}: ${node.state}${node.error ? `, ${node.error}` : ""}`;
  const inside = [s("rect", { x: place.x, y: place.y, width: size.width, height: size.height, rx: 5 })];
  if (size === NAMED) {
    inside.push(s("text", { class: "name", x: place.x + 10, y: place.y + 19 }, cut(node.queue, 20)),
      s("text", { x: place.x + 10, y: place.y + 36 }, `${node.state} · …${node.id.slice(-8)}`));
  }
  const kind = `node is-${node.state}${node.id === current ? " current" : ""}`;
  if (!node.linked) return s("g", { class: kind, "data-key": node.id, role: "img", "aria-label": label }, inside);
  return s("a", { class: kind, "data-key": node.id, href: jobLink(tenant, node), "aria-label": label }, inside);
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
