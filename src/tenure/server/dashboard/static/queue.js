// One queue: counts, the last hour, its policy, its jobs.

import { age, h, number, plural, rate, show, span } from "./dom.js";
import { chart, whole } from "./charts.js";
import { act, Live } from "./net.js";
import { jobTable, searched, searchForm } from "./jobs.js";
import { groups } from "./groups.js";
import { tiles } from "./overview.js";

const STATES = ["ready", "scheduled", "blocked", "leased", "done", "dead"];

const POLICY = [
  ["Attempts", (p) => number(p.max_attempts)], ["Lease", (p) => span(p.lease * 1000)],
  ["Backoff", (p) => `${p.backoff.kind ?? "exponential"}, from ${span((p.backoff.base ?? 0) * 1000)}${p.backoff.cap ? `, at most ${span(p.backoff.cap * 1000)}` : ""}, jitter ${p.backoff.jitter ?? "none"}`],
  ["Also after a lease ran out", (p) => (p.backoff_on_expiry ? "yes" : "no: ready at once")],
  ["Done jobs are kept", (p) => (p.retention ? span(p.retention * 1000) : "not at all")], ["Results are kept", (p) => span(p.result_retention * 1000)],
  ["Keys are held", (p) => span(p.dedup_window * 1000)], ["Most waiting", (p) => (p.max_waiting ? number(p.max_waiting) : "no limit")],
  ["Most leased at a time", (p) => (p.max_leased ? number(p.max_leased) : "no limit")], ["Rate", (p) => (p.rate ? `${p.rate.jobs} in ${p.rate.per} s` : "no limit")],
];

export function queue(page, tenant, name) {
  const query = { tenant, queue: name, state: "ready" };
  const places = { head: h("div"), charts: h("div"), groups: h("div"), jobs: h("section"), policy: h("section") };
  let list, cursors = [], problem = null;
  page.title(name);
  show(page.main);
  page.main.append(h("h1", { tabindex: "-1" }, name), places.head, places.charts, places.groups, places.jobs, places.policy);
  page.live(new Live("queue", { tenant, queue: name }, render, page.failed));
  page.live(new Live("groups", { tenant, queue: name }, (view) => { const made = groups(view); show(places.groups, made.length > 0 && h("section", null, made)); }, page.failed));
  again();

  async function change(paused) {
    problem = null;
    try { await act(page.me, "POST", tenant, name, paused ? "/pause" : "/resume"); } catch (error) { problem = error.message; show(places.head, h("p", { class: "problem", role: "alert" }, problem)); }
  }

  function render(view) {
    const row = view.row;
    show(places.head,
      h("div", { class: "row spread" },
        h("p", null, h("span", { class: "soft" }, "tenant "), tenant, row.paused && [" ", h("span", { class: "badge" }, "paused: claims return nothing")]),
        page.me.may_mend && h("button", { "data-key": "pause", onclick: () => change(!row.paused) }, row.paused ? "Resume" : "Pause")),
      problem && h("p", { class: "problem", role: "alert" }, problem),
      tiles([["scheduled", row.scheduled], [row.at_least ? "ready, at least" : "ready", row.ready], ["blocked", row.blocked], ["leased", row.leased], ["dead", row.dead, "dead"], ["in / s", rate(row.rate_in)], ["out / s", rate(row.rate_out)], ["oldest ready", row.oldest_at_ms ? age(row.oldest_at_ms) : "–"], ["last claim seen", view.last_claim_ms ? age(view.last_claim_ms) : "–"]]),
      h("p", { class: "small soft" }, `${plural(view.enqueued, "job")} enqueued since the queue was made, ${number(view.removed)} gone, ${number(view.done)} kept as done. Charts since `, view.since_ms ? age(view.since_ms) : "now", "; wait and run times are of a sample where the store is busy."));
    const c = view.charts;
    show(places.charts, h("div", { class: "charts" },
      chart("Jobs a minute", [["in", whole(c.ins)], ["out", whole(c.outs)]], c.first_minute),
      chart("Backlog, jobs", [["waiting", c.waiting], ["leased", c.leased]], c.first_minute),
      chart("Wait", [["mean", c.wait_ms], ["longest", c.longest_wait_ms]], c.first_minute, { ms: true }),
      chart("Run time", [["mean", c.run_ms], ["longest", c.longest_run_ms]], c.first_minute, { ms: true })));
    show(places.policy, h("h2", null, "Policy"), h("dl", null, POLICY.map(([title, tell]) => [h("dt", null, title), h("dd", null, tell(view.policy))])));
  }

  function again() {
    list?.close();
    list = page.live(new Live("jobs", { ...query, cursor: cursors.at(-1) ?? "" }, renderJobs, page.failed));
  }

  function renderJobs(view) {
    const choose = (state) => { Object.assign(query, { state, id: "", key: "", error: "", since_ms: "", before_ms: "" }); cursors = []; again(); };
    show(places.jobs,
      h("h2", null, "Jobs"),
      h("div", { class: "tabs", role: "group", "aria-label": "State" }, STATES.map((state) => h("button", { "aria-pressed": String(state === query.state), onclick: () => choose(state) }, state))),
      searchForm((criteria) => { Object.assign(query, criteria); cursors = []; again(); }),
      h("p", { class: "small soft", role: "status" }, searched(view) ?? ""),
      jobTable(`${query.state} jobs`, view.jobs, { which: query.state, empty: `No ${query.state} jobs${view.looked_at ? " fit" : ""}.` }),
      (view.cursor || cursors.length > 0) && h("div", { class: "row", "data-key": "pages" },
        h("button", { disabled: !cursors.length, onclick: () => { cursors.pop(); again(); } }, "Previous"),
        h("button", { disabled: !view.cursor, onclick: () => { cursors.push(view.cursor); again(); } }, "Next")));
  }
}
