// Schedules with their next runs, and the next scheduled jobs.

import { age, h, number, plural, show, span, table, when } from "./dom.js";
import { actOnSchedule, Live } from "./net.js";
import { jobLink, jobTable } from "./jobs.js";
import { queueLink } from "./overview.js";

export function schedules(page) {
  const places = { schedules: h("section"), upcoming: h("section") };
  let latest = null, problem = null, made = null;
  page.title("Schedules");
  show(page.main);
  page.main.append(h("h1", { tabindex: "-1" }, "Schedules"), places.schedules, places.upcoming);
  page.live(new Live("schedules", {}, (view) => { latest = view; render(); }, page.failed));
  page.live(new Live("upcoming", {}, (view) => show(places.upcoming, h("h2", null, "The next scheduled jobs of all queues"), jobTable("Scheduled jobs", view.jobs, { which: "scheduled", empty: "Nothing is scheduled." })), page.failed));

  async function change(row, verb) {
    problem = made = null;
    try {
      const answer = await actOnSchedule(page.me, row.tenant, row.name, verb);
      if (verb === "run") made = { ...row, id: answer.id };
    } catch (error) { problem = error.message; }
    render();
  }

  const rhythm = (row) => (row.cron ? [h("code", null, row.cron), ` ${row.tz}`] : `every ${span(row.every_ms)}`);

  function render() {
    const acts = page.me.may_mend || page.me.may_produce;
    const columns = [["Schedule", { wide: true }], ["Runs"], ["Next run"], ["Then"], ["Job", { wide: true }]];
    if (acts) columns.push(["Act", { wide: true }]);
    show(places.schedules,
      h("h2", null, plural(latest.found, "schedule")),
      latest.schedules.length < latest.found && h("p", { class: "small soft" }, `The ${number(latest.schedules.length)} that run next are shown.`),
      problem && h("p", { class: "problem", role: "alert" }, problem),
      h("div", { role: "status", "data-key": "made" }, made && h("p", { class: "notice" }, "Enqueued ", h("a", { class: "mono", href: jobLink(made) }, made.id), ` for ${made.name}.`)),
      table("Schedules", columns, latest.schedules.map((row) => ({
        key: `${row.tenant}/${row.name}`,
        cells: [
          [h("strong", null, row.name), row.paused && [" ", h("span", { class: "badge" }, "paused")]],
          rhythm(row), row.next_ms.length ? when(row.next_ms[0]) : row.paused ? "not while paused" : "never again",
          row.next_ms.slice(1).map((ms, at) => [at > 0 && ", ", age(ms)]),
          [h("a", { href: queueLink(row.tenant, row.queue) }, `${row.tenant} / ${row.queue}`), " ", h("code", null, row.preview || "(empty)")],
          ...(acts ? [h("div", { class: "row" },
            page.me.may_produce && h("button", { "aria-label": `Run ${row.name} now`, onclick: () => change(row, "run") }, "Run now"),
            page.me.may_mend && h("button", { "data-key": "pause", "aria-label": `${row.paused ? "Resume" : "Pause"} ${row.name}`, onclick: () => change(row, row.paused ? "resume" : "pause") }, row.paused ? "Resume" : "Pause"))] : []),
        ],
      })), "No schedule is stored. app.schedules.add and tenure schedule add make one; those of app.periodic are the workers' own, and their next jobs are below."));
  }
}
