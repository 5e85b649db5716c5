// A list of jobs with its search, for the pages of a queue and of dead letters.

import { age, h, number, size, state, table, when } from "./dom.js";

export const jobLink = (job) => `#/job/${encodeURIComponent(job.tenant)}/${encodeURIComponent(job.queue)}/${job.id ?? job.job_id}`;

const WHEN = { blocked: ["Enqueued", "created_at_ms"], scheduled: ["Ready", "visible_at_ms"], ready: ["Ready since", "visible_at_ms"], leased: ["Lease ends", "lease_until_ms"], done: ["Done", "ended_at_ms"], dead: ["Died", "ended_at_ms"] };

export function jobTable(caption, jobs, { chosen = null, empty = "None.", which = "ready" } = {}) {
  const [title, field] = WHEN[which] ?? WHEN.ready;
  const columns = [["Job", { wide: true }], ["State"], ["Attempt", { n: true }], ["Priority", { n: true }], [title], ["Detail", { wide: true }]];
  if (chosen) columns.unshift(["Choose"]);
  const rows = jobs.map((job) => {
    const cells = [
      h("a", { class: "mono", href: jobLink(job) }, job.id),
      state(job.state), `${job.attempt} of ${job.max_attempts}`, number(job.priority), field === "visible_at_ms" ? age(job[field]) : when(job[field]),
      job.error ? h("span", { class: job.state === "dead" ? "dead" : null }, job.error)
        : job.worker ? `worker ${job.worker}${job.progress ? ` · ${Math.round(job.progress * 100)} %` : ""}`
        : [h("code", null, job.preview || "(empty)"), h("span", { class: "soft small" }, ` ${size(job.bytes)}${job.group ? ` · group ${job.group}` : ""}`)],
    ];
    if (chosen) cells.unshift(h("input", { type: "checkbox", "aria-label": `Choose job ${job.id}`, onchange: (event) => chosen(job, event.target.checked) }));
    return { key: job.id, cells };
  });
  return table(caption, columns, rows, empty);
}

const moment = (text) => (text ? new Date(text).getTime() : "");

/** The search form; `search` gets {id, key, error, since_ms, before_ms}. */
export function searchForm(search, { dead = false } = {}) {
  const submit = (event) => {
    event.preventDefault();
    const field = Object.fromEntries(new FormData(event.target));
    search({ id: field.id?.trim() ?? "", key: field.key?.trim() ?? "", error: field.error?.trim() ?? "", since_ms: moment(field.since), before_ms: moment(field.before) });
  };
  return h("form", { class: "row", onsubmit: submit, "data-key": "search", role: "search", "aria-label": "Jobs" },
    h("label", null, "Id", h("input", { name: "id", autocomplete: "off", spellcheck: "false" })),
    !dead && h("label", null, "Key", h("input", { name: "key", autocomplete: "off", spellcheck: "false" })),
    h("label", null, "Error contains", h("input", { name: "error", autocomplete: "off" })),
    h("label", null, "From", h("input", { name: "since", type: "datetime-local" })),
    h("label", null, "To", h("input", { name: "before", type: "datetime-local" })),
    h("button", { type: "submit" }, "Search"));
}

export const searched = (view) => view.looked_at === null || view.looked_at === undefined ? null
  : `${number(view.jobs.length)} found among ${number(view.looked_at)} looked at${view.cursor ? "; there are more: go on with the next page" : ""}.`;
