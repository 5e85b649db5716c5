// Leases: the worker, its jobs, since when and until when.

import { age, h, number, plural, show, table } from "./dom.js";
import { Live } from "./net.js";
import { queueLink } from "./overview.js";

const link = (row) => h("a", { href: queueLink(row.tenant, row.queue) }, `${row.tenant} / ${row.queue}`);

export function workers(page) {
  page.title("Workers");
  page.live(new Live("workers", {}, render, page.failed));

  function render(view) {
    show(page.main, h("h1", { tabindex: "-1" }, "Workers and leases"),
      h("section", { "data-key": "leases" }, h("h2", null, `Leases: ${number(view.leases.length)}${view.more ? ", and more than are shown" : ""}`),
        table("Leases", [["Worker", { wide: true }], ["Queue", { wide: true }], ["Jobs", { n: true }], ["Since"], ["Until"], ["Holds", { wide: true }]], view.leases.map((row) => ({
          key: row.lease_id,
          cells: [row.worker || h("span", { class: "soft" }, "no name"), link(row), number(row.jobs), age(row.since_ms), age(row.until_ms),
            [row.ids.map((id, at) => [at > 0 && ", ", h("a", { class: "mono", href: `#/job/${encodeURIComponent(row.tenant)}/${encodeURIComponent(row.queue)}/${id}` }, id)]), row.jobs > row.ids.length && ` and ${plural(row.jobs - row.ids.length, "other")}`]],
        })), "Nobody holds a job.")),
      h("section", { "data-key": "seen" }, h("h2", null, "Claimed lately"),
        h("p", { class: "small soft" }, "As far as this server has seen, since it was started."),
        table("Workers that claimed lately", [["Worker", { wide: true }], ["Last claim"], ["From", { wide: true }]], view.seen.map((row) => ({ key: row.worker, cells: [row.worker, age(row.at_ms), link(row)] })), "No worker with a name has claimed yet.")));
  }
}
