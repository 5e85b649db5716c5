// One job: its state and the reason, its payload and result, and every attempt.

import { clock, h, number, plural, show, size, span, state, table, when } from "./dom.js";
import { act, Live } from "./net.js";
import { confirm } from "./dialog.js";
import { flowLink } from "./flow.js";
import { jobLink } from "./jobs.js";
import { queueLink } from "./overview.js";

const ENDS = { done: "done", retried: "failed, and is tried again", died: "died", released: "released: does not count", expired: "lost: its lease ran out", cancelled: "cancelled" };

export function job(page, tenant, queue, id) {
  const shapes = { payload: null, result: null };
  let latest, problem = null;
  page.title(`Job ${id}`);
  page.live(new Live("job", { tenant, queue, id }, (view) => { latest = view; render(); }, page.failed));

  async function doing(work) {
    problem = null;
    try { await work(); } catch (error) { problem = error.message; }
    render();
  }

  const cancel = () => confirm("Cancel this job?", "It is removed. A worker that holds it finds out at its next call.", "Cancel the job", () => doing(() => act(page.me, "DELETE", tenant, queue, `/jobs/${id}`)));
  const replay = () => doing(() => act(page.me, "POST", tenant, queue, "/replay", { ids: [id] }));

  function content(title, which, data) {
    if (!data) return null;
    const parsed = json(data);
    const choices = [["JSON", parsed], ["Text", data.text], ["Hex", hexed(data.hex)]].filter(([, text]) => text !== null && text !== undefined);
    const chosen = choices.find(([name]) => name === shapes[which]) ?? choices[0];
    const cut = chosen[0] === "Hex" ? data.hex_cut : data.text_cut;
    return h("section", { "data-key": which },
      h("div", { class: "row spread" }, h("h2", null, title, " ", h("span", { class: "small soft" }, size(data.bytes))),
        h("div", { class: "tabs", role: "group", "aria-label": `${title} as` }, choices.map(([name]) => h("button", { "aria-pressed": String(name === chosen[0]), onclick: () => { shapes[which] = name; render(); } }, name)))),
      data.bytes ? h("pre", { tabindex: "0", role: "region", "aria-label": title, "data-content": which }, chosen[1]) : h("p", { class: "soft" }, "Empty."),
      cut && h("p", { class: "small soft" }, "Only the beginning is shown. ", h("code", null, `tenure get ${queue} ${id} --${which}`), " prints all of it."));
  }

  function render() {
    const view = latest, found = view.job, why = view.explanation;
    const ended = !found || found.state === "done" || found.state === "dead";
    show(page.main,
      h("h1", { tabindex: "-1" }, "Job ", h("span", { class: "mono" }, id)),
      h("p", null, h("a", { href: queueLink(tenant, queue) }, `${tenant} / ${queue}`)),
      problem && h("p", { class: "problem", role: "alert" }, problem),
      h("section", { "aria-live": "polite", "data-key": "explanation", "data-state": why.state },
        h("div", { class: "row spread" }, h("h2", null, "Where it is: ", state(why.state)),
          h("div", { class: "row" },
            page.me.may_mend && why.state === "dead" && h("button", { class: "main", onclick: replay, "data-key": "replay" }, "Replay"),
            page.me.may_produce && !ended && h("button", { class: "danger", onclick: cancel, "data-key": "cancel" }, "Cancel"))),
        h("p", { class: "lead" }, why.where),
        h("ul", { class: "why" }, why.why.map((line) => h("li", null, line))),
        h("p", null, h("strong", null, "Next: "), why.next)),
      found?.progress !== undefined && found?.state === "leased" && h("section", { "data-key": "progress" }, h("h2", null, "Progress"), h("p", null, `${Math.round(found.progress * 100)} % ${view.progress_note ?? ""}`)),
      view.error && h("section", { "data-key": "error" }, h("h2", null, "Last error"), h("pre", { tabindex: "0", role: "region", "aria-label": "Last error" }, view.error)),
      (view.parents.length > 0 || view.children.length > 0) && h("section", { "data-key": "flow" },
        h("div", { class: "row spread" }, h("h2", null, "Flow"), h("a", { href: flowLink(tenant, queue, id) }, "Draw its graph")),
        relatives("Waits or waited for", view.parents), relatives("Jobs that wait or waited for it", view.children)),
      view.steps.length > 0 && h("section", { "data-key": "steps" }, h("h2", null, "Steps and signals"),
        table("Steps and signals", [["Name", { wide: true }], ["Kind"], ["Stored"], ["Value", { wide: true }]], view.steps.map((step) => ({
          key: `${step.kind}/${step.name}`, cells: [step.name, step.kind, when(step.stored_at_ms), [h("code", null, step.preview || "(empty)"), h("span", { class: "soft small" }, ` ${size(step.bytes)}`)]],
        })), "")),
      content("Payload", "payload", view.payload),
      content("Result", "result", view.result),
      found && h("section", { "data-key": "facts" }, h("h2", null, "Facts"), facts(view, found)),
      h("section", { "data-key": "timeline" }, h("h2", null, "Timeline"),
        view.events_left_out > 0 && h("p", { class: "soft" }, `${plural(view.events_left_out, "older event")} left out.`),
        h("ol", { class: "timeline" }, entries(view.events))));
  }

  function relatives(title, jobs) {
    return jobs.length > 0 && [h("h3", null, title), h("ul", { class: "relatives" }, jobs.map((one) => h("li", { "data-key": one.id },
      one.state === "gone" ? h("span", { class: "mono" }, one.id) : h("a", { class: "mono", href: jobLink({ ...one, tenant }) }, one.id), ` ${one.queue} `, state(one.state)))),
    jobs.length === 20 && h("p", { class: "small soft" }, "These are the first 20; the graph has all.")];
  }

  function facts(view, found) {
    const rows = [["Created", when(found.created_at_ms)], ["Attempt", `${found.attempt} of ${found.max_attempts}`], ["Priority", number(found.priority)], ["Fencing token", number(found.token)]];
    if (found.group) rows.push(["Group", found.group]);
    if (found.key) rows.push(["Idempotency key", found.key]);
    if (view.replays) rows.push(["Replayed", plural(view.replays, "time")]);
    if (found.worker) rows.push(["Worker", found.worker]);
    if (view.lease_id) rows.push(["Lease", [h("code", null, view.lease_id), " until ", when(found.lease_until_ms)]]);
    if (view.due_at_ms) rows.push(["Removed by itself", when(view.due_at_ms)]);
    for (const [name, value] of Object.entries(view.headers)) rows.push([`Header ${name}`, value]);
    return h("dl", null, rows.map(([title, value]) => [h("dt", null, title), h("dd", null, value)]));
  }
}

/** The events, grouped by attempt. */
function entries(events) {
  const items = [];
  let attempt = null;
  for (const event of events) {
    const at = h("time", { datetime: new Date(event.time_ms).toISOString(), class: "soft small" }, clock(event.time_ms));
    if (event.type === "claimed") {
      attempt = { number: event.attempt, began: event.time_ms, lines: [h("div", null, h("strong", null, `Attempt ${event.attempt} of ${event.max_attempts}`), " claimed by ", event.text ? h("code", null, event.text) : "a worker without a name", " ", at)], kind: "leased", extended: 0 };
      items.push(attempt);
    } else if (event.type === "extended" && attempt) {
      attempt.lines.push(h("div", null, "lease extended until ", clock(event.at_ms), " ", at));
    } else if (attempt && ENDS[event.type]) {
      attempt.lines.push(h("div", null, h("strong", null, ENDS[event.type]), ` after ${span(event.time_ms - attempt.began)} `, at), event.text && h("details", null, h("summary", null, headline(event.text)), h("pre", { tabindex: "0", role: "region", "aria-label": `Error of attempt ${attempt.number}` }, event.text)));
      attempt.kind = event.type === "done" ? "done" : event.type === "died" ? "dead" : "";
      attempt = null;
    } else {
      items.push({ lines: [h("div", null, h("strong", null, event.type.replace("_", " ")), event.at_ms > event.time_ms ? ` for ${clock(event.at_ms)} ` : " ", at)], kind: "" });
    }
  }
  return items.map((item) => h("li", { class: item.kind ? `is-${item.kind}` : null }, item.lines));
}

function headline(text) {
  const lines = text.trim().split("\n");
  return lines[0].startsWith("Traceback (most recent") ? lines.at(-1).trim() : lines[0];
}

function json(data) {
  if (data.text === null || data.text_cut || !/^\s*[[{]/.test(data.text)) return null;
  try { return JSON.stringify(JSON.parse(data.text), null, 2); } catch { return null; }
}

function hexed(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${hex.slice(at, at + 32).replace(/(..)/g, "$1 ")}`);
  return lines.join("\n");
}
