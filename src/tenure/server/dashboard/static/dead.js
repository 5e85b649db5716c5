// Dead letters by cause, with a replay after a dry run, and a purge that asks for confirmation with the count.

import { age, clock, h, number, plural, show, table } from "./dom.js";
import { act, Live } from "./net.js";
import { confirm } from "./dialog.js";
import { jobTable, searched, searchForm } from "./jobs.js";
import { queueLink } from "./overview.js";

const deadLink = (row) => `#/dead/${encodeURIComponent(row.tenant)}/${encodeURIComponent(row.queue)}`;

export function dead(page, tenant, queue) {
  const places = { top: h("div"), replay: h("section"), jobs: h("section") };
  const search = { error: "", id: "", since_ms: "", before_ms: "" };
  const wish = { error: "", reason: "", rate: "", limit: "" };
  const chosen = new Map();
  let view, list, cursors = [], said = null, problem = null, busy = false, target = null;
  page.title("Dead letters");
  show(page.main);
  page.main.append(h("h1", { tabindex: "-1" }, "Dead letters"), places.top);
  if (queue) page.main.append(...(page.me.may_mend ? [places.replay] : []), places.jobs);
  page.live(new Live("dead", { tenant: queue ? tenant : "", queue: queue ?? "" }, (found) => { view = found; renderTop(); renderReplay(); }, page.failed));
  if (queue) again();

  function renderTop() {
    if (!queue) {
      show(places.top, h("section", null, h("h2", null, "Queues with dead jobs"),
        table("Queues with dead jobs", [["Queue", { wide: true }], ["Dead", { n: true }]], view.queues.map((row) => ({ key: `${row.tenant}/${row.queue}`, cells: [h("a", { href: deadLink(row) }, `${row.tenant} / ${row.queue}`), number(row.dead)] })), "No queue has dead jobs.")));
      return;
    }
    const total = view.chosen.dead;
    const columns = [["Cause", { wide: true }], ["Jobs", { n: true }], ["Reason"], ["First"], ["Last"]];
    if (page.me.may_mend) columns.push(["Choose"]);
    show(places.top,
      h("p", null, h("a", { href: queueLink(tenant, queue) }, `${tenant} / ${queue}`), " · ", h("a", { href: "#/dead" }, "all queues")),
      h("section", null,
        h("div", { class: "row spread" }, h("h2", null, `${plural(total, "dead job")}, by cause`),
          page.me.may_mend && h("button", { class: "danger", "data-key": "purge", disabled: !total || busy, onclick: purge }, "Purge…")),
        view.looked_at < total && h("p", { class: "notice" }, `The ${number(view.looked_at)} that died first were looked at, of ${number(total)}.`),
        table("Causes", columns, view.causes.map((cause) => ({
          key: `${cause.cause}/${cause.reason}`,
          cells: [h("span", { class: "dead" }, cause.cause), number(cause.jobs), cause.reason === "failed" ? "given up" : "attempts used up", age(cause.first_ms), age(cause.last_ms),
            ...(page.me.may_mend ? [h("button", { "aria-label": `Choose cause ${cause.cause}`, onclick: () => choose(cause) }, "Choose")] : [])],
        })), "No dead jobs.")));
  }

  function choose(cause) {
    Object.assign(wish, { error: cause.part, reason: cause.reason });
    Object.assign(search, { error: cause.part, id: "" });
    places.replay.querySelector("[name=error]").value = cause.part;
    cursors = [];
    said = null;
    again();
    renderReplay();
    dry();
  }

  const body = (dryRun) => ({ error: wish.error || undefined, reason: wish.reason || undefined, limit: Number(wish.limit) || undefined, spacing_ms: Number(wish.rate) > 0 ? 1000 / Number(wish.rate) : undefined, dry_run: dryRun });

  async function doing(work) {
    busy = true;
    problem = null;
    renderReplay();
    try { await work(); } catch (error) { problem = error.message; }
    busy = false;
    renderTop();
    renderReplay();
  }

  const dry = () => doing(async () => {
    const found = await act(page.me, "POST", tenant, queue, "/replay", body(true));
    said = { dry: found.count, until: found.last_visible_at_ms };
  });

  const replay = (what) => doing(async () => {
    const before = view.chosen.dead;
    const found = await act(page.me, "POST", tenant, queue, "/replay", what);
    target = { from: before, done: found.count, until: found.last_visible_at_ms };
    said = null;
    chosen.clear();
    again();
  });

  const purge = () => confirm(`Purge ${plural(view.chosen.dead, "dead job")}?`, `All ${plural(view.chosen.dead, "dead job")} of ${tenant} / ${queue} are removed for good, with their payloads and errors. They cannot be replayed afterwards.`,
    `Purge ${plural(view.chosen.dead, "job")}`, () => doing(async () => { const found = await act(page.me, "POST", tenant, queue, "/purge", { state: "dead" }); target = { purged: found.count }; again(); }));

  function progress() {
    if (!target) return null;
    if (target.purged !== undefined) return h("p", { class: "notice", role: "status" }, `${plural(target.purged, "job")} purged.`);
    const later = target.until && target.until > Date.now() + 2000 ? ` They become ready one after the other, the last at ${clock(target.until)}.` : "";
    return h("p", { class: "notice", role: "status" }, `${plural(target.done, "job")} replayed; ${number(view?.chosen?.dead ?? 0)} of ${number(target.from)} still dead.${later}`);
  }

  function renderReplay() {
    if (!page.me.may_mend || !view?.chosen) return;
    const set = (name) => (event) => { wish[name] = event.target.value.trim(); said = null; renderReplay(); };
    show(places.replay,
      h("h2", null, "Replay"),
      h("form", { class: "row", "data-key": "form", onsubmit: (event) => { event.preventDefault(); dry(); } },
        h("label", null, "Error contains", h("input", { name: "error", oninput: set("error"), autocomplete: "off" })),
        h("label", null, "Jobs a second", h("input", { name: "rate", type: "number", min: "0", step: "any", placeholder: "at once", oninput: set("rate") })),
        h("label", null, "At most", h("input", { name: "limit", type: "number", min: "1", placeholder: "all", oninput: set("limit") })),
        h("button", { type: "submit", disabled: busy }, "Dry run"),
        h("button", { type: "button", class: "main", disabled: busy || !said?.dry, onclick: () => replay(body(false)) }, said ? `Replay ${plural(said.dry, "job")}` : "Replay"),
        h("button", { type: "button", disabled: busy || !chosen.size, onclick: () => replay({ ids: [...chosen.keys()], tokens: [...chosen.values()] }) }, `Replay chosen (${chosen.size})`)),
      h("div", { role: "status", "data-key": "said" }, said && h("p", null, said.dry ? `${plural(said.dry, "job")} would come back${said.until && said.until > Date.now() + 2000 ? `, the last at ${clock(said.until)}` : ""}.` : "No dead job fits.")),
      problem && h("p", { class: "problem", role: "alert" }, problem),
      progress());
  }

  function again() {
    list?.close();
    list = page.live(new Live("jobs", { tenant, queue, state: "dead", ...search, cursor: cursors.at(-1) ?? "" }, renderJobs, page.failed));
  }

  function renderJobs(found) {
    show(places.jobs, h("h2", null, "Jobs"),
      searchForm((criteria) => { Object.assign(search, criteria); cursors = []; again(); }, { dead: true }),
      h("p", { class: "small soft", role: "status" }, searched(found) ?? ""),
      jobTable("Dead jobs", found.jobs, { which: "dead", empty: "No dead jobs fit.", chosen: page.me.may_mend ? (job, on) => { if (on) chosen.set(job.id, job.token); else chosen.delete(job.id); renderReplay(); } : null }),
      (found.cursor || cursors.length > 0) && h("div", { class: "row", "data-key": "pages" },
        h("button", { disabled: !cursors.length, onclick: () => { cursors.pop(); again(); } }, "Previous"),
        h("button", { disabled: !found.cursor, onclick: () => { cursors.push(found.cursor); again(); } }, "Next")));
  }
}
