// Tenants and queues with their counts.

import { age, h, number, plural, rate, show, table } from "./dom.js";
import { spark } from "./charts.js";
import { Live } from "./net.js";

export const queueLink = (tenant, queue) => `#/queue/${encodeURIComponent(tenant)}/${encodeURIComponent(queue)}`;

export const tiles = (pairs) => h("div", { class: "tiles" }, pairs.map(([name, value, kind]) =>
  h("div", { class: "tile", "data-key": name }, h("b", { class: kind && value ? kind : null }, typeof value === "number" ? number(value) : value), h("span", null, name))));

export function overview(page) {
  const query = { tenant: "", filter: "", page: 0 };
  let live;
  const again = () => {
    live?.close();
    live = page.live(new Live("overview", query, render, page.failed));
  };
  let typing;
  const filter = (event) => {
    clearTimeout(typing);
    const text = event.target.value;
    typing = setTimeout(() => { query.filter = text.trim(); query.page = 0; again(); }, 250);
  };

  function render(view) {
    const several = view.tenants.length > 1;
    const pages = Math.ceil(view.found / view.per_page);
    const columns = [["Queue", { wide: true }], ["Scheduled", { n: true }], ["Ready", { n: true }], ["Blocked", { n: true }], ["Leased", { n: true }], ["Dead", { n: true }], ["Oldest ready", { n: true }], ["In / s", { n: true }], ["Out / s", { n: true }], ["Last hour", { wide: true }]];
    const rows = view.rows.map((row) => ({
      key: `${row.tenant}/${row.queue}`,
      cells: [
        [h("a", { href: queueLink(row.tenant, row.queue) }, several ? `${row.tenant} / ${row.queue}` : row.queue), row.paused && [" ", h("span", { class: "badge" }, "paused")]],
        number(row.scheduled), row.at_least ? `≥ ${number(row.ready)}` : number(row.ready), number(row.blocked), number(row.leased),
        row.dead ? h("a", { class: "dead", href: `#/dead/${encodeURIComponent(row.tenant)}/${encodeURIComponent(row.queue)}`, "aria-label": `${plural(row.dead, "dead job")} of ${row.queue}` }, number(row.dead)) : "0",
        row.oldest_at_ms ? age(row.oldest_at_ms) : "–", rate(row.rate_in), rate(row.rate_out), spark(row.ins, row.outs),
      ],
    }));
    show(page.main,
      h("h1", { tabindex: "-1" }, "Queues"),
      tiles([["queues", view.totals.queues], ["scheduled", view.totals.scheduled], ["ready", view.totals.ready], ["blocked", view.totals.blocked], ["leased", view.totals.leased], ["dead", view.totals.dead, "dead"]]),
      h("section", { "data-key": "queues" },
        h("div", { class: "row", "data-key": "filters" },
          h("label", null, "Filter by name", h("input", { type: "search", oninput: filter, autocomplete: "off" })),
          several && h("label", { "data-key": "tenant" }, "Tenant", h("select", { onchange: (event) => { query.tenant = event.target.value; query.page = 0; again(); } },
            h("option", { value: "" }, "all"), view.tenants.map((name) => h("option", { value: name }, name)))),
          h("p", { class: "small soft" }, h("span", { class: "key" }), "in ", h("span", { class: "key b" }), "out · charts since ", view.since_ms ? age(view.since_ms) : "now")),
        table("Queues", columns, rows, query.filter || query.tenant ? "No queue fits." : "No queues yet: the first enqueue makes one."),
        pages > 1 && h("div", { class: "row", "data-key": "pages" },
          h("button", { disabled: query.page === 0, onclick: () => { query.page -= 1; again(); } }, "Previous"),
          h("span", null, `Page ${query.page + 1} of ${pages} · ${plural(view.found, "queue")}`),
          h("button", { disabled: query.page + 1 >= pages, onclick: () => { query.page += 1; again(); } }, "Next"))));
  }

  page.title("Queues");
  again();
}
