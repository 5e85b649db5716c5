// The groups of a queue, and their shares of its turns.

import { age, h, number, plural, table } from "./dom.js";

const percent = (share) => (share === null ? "–" : `${(share * 100).toLocaleString("en", { maximumFractionDigits: 1 })} %`);

function limit(row) {
  const parts = [];
  if (row.max_leased) parts.push(`${number(row.max_leased)} leased`);
  if (row.rate) parts.push(`${row.rate.jobs} in ${row.rate.per} s`);
  return parts.join(", ") || "no limit";
}

/** The elements of the section; empty if no job is in a group. */
export function groups(view) {
  if (!view.groups.length) return [];
  const rows = view.groups.map((row) => ({
    key: row.group ?? "",
    cells: [[row.group ?? h("span", { class: "soft" }, "jobs without a group"), row.at_limit && [" ", h("span", { class: "badge" }, "at its limit")]],
      number(row.waiting), row.leased === null ? "–" : number(row.leased), number(row.weight), [percent(row.share), row.share !== null && h("meter", { min: 0, max: 1, value: row.share, "aria-label": `Share of ${row.group ?? "jobs without a group"}` })], limit(row), row.oldest_at_ms ? age(row.oldest_at_ms) : "–"],
  }));
  return [h("h2", null, `Groups: ${number(view.looked_at)}${view.more ? " or more" : ""}`),
    h("p", { class: "small soft" }, "Groups that have a ready job and room take turns; a share is what a group gets of them now.", view.more && " There are more groups than were looked at: their shares are smaller.",
      view.groups.length < view.looked_at && ` The ${plural(view.groups.length, "group")} with the most jobs are shown.`),
    table("Groups", [["Group", { wide: true }], ["Waiting", { n: true }], ["Leased", { n: true }], ["Weight", { n: true }], ["Share", { n: true }], ["Limit"], ["Oldest ready", { n: true }]], rows, "")];
}
