// The frame around the pages: the signed-in caller, the current page, and the state of the connection.
//
//   #/                        queues            #/dead, #/dead/TENANT/QUEUE   dead letters
//   #/queue/TENANT/QUEUE      one queue         #/workers                     leases and workers
//   #/job/TENANT/QUEUE/ID     one job           #/schedules                   schedules, and scheduled jobs
//   #/flow/TENANT/QUEUE/ID    its flow

import { clock, h, keepAges, setClock, show } from "./dom.js";
import { connection, onSignedOut, signIn, signOut, view } from "./net.js";
import { overview } from "./overview.js";
import { queue } from "./queue.js";
import { job } from "./job.js";
import { flow } from "./flow.js";
import { dead } from "./dead.js";
import { schedules } from "./schedules.js";
import { workers } from "./workers.js";

const PAGES = { "": overview, queue, job, flow, dead, workers, schedules };
const LINKS = [["Queues", "#/"], ["Dead letters", "#/dead"], ["Workers", "#/workers"], ["Schedules", "#/schedules"], ["API", "/docs"]];
const main = document.getElementById("main");
let me = null, lives = [], heard = null;

function leave() {
  for (const live of lives) live.close();
  lives = [];
}

/** The parts of the address after the #; of one that is not encoded as an address, the whole as the page's name. */
function parts() {
  const path = location.hash.replace(/^#\/?/, "");
  try { return path.split("/").map(decodeURIComponent); } catch { return [path]; }
}

function route() {
  leave();
  if (!me) return;
  const [name, ...rest] = parts();
  const page = {
    me, main,
    live: (live) => { lives.push(live); return live; },
    title: (text) => { document.title = `${text} · Tenure`; },
    failed: (error) => { leave(); show(main, h("h1", { tabindex: "-1" }, error.status === 404 ? "Not found" : "This cannot be shown"), h("p", { class: "problem", role: "alert" }, error.message), h("p", null, h("a", { href: "#/" }, "All queues"))); },
  };
  show(document.getElementById("nav"), LINKS.map(([title, href]) => h("a", { href, "aria-current": href === (name ? `#/${name}` : "#/") || (href === "#/" && ["queue", "job", "flow"].includes(name)) ? "page" : null }, title)));
  const known = Object.hasOwn(PAGES, name) && PAGES[name];
  show(main, h("h1", { tabindex: "-1" }, "…"));
  if (known) known(page, ...rest);
  else page.failed({ status: 404, message: "There is no such page." });
  window.scrollTo(0, 0);
  if (moved) main.focus({ preventScroll: true });
  moved = true;
}
let moved = false; // after the first page, focus follows the page

function who() {
  const place = document.getElementById("who");
  if (!me) { show(place); return; }
  show(place, h("span", null, me.operator ? "operator" : `${me.subject} · ${me.tenant}`),
    me.signed_in && h("button", { onclick: async () => { await signOut(); start(); } }, "Sign out"));
}

connection.changed = () => {
  const place = document.getElementById("connection");
  const streams = [...connection.streams];
  if (!streams.length) { place.className = ""; show(place); return; }
  const lost = streams.some((stream) => stream.lost);
  if (!lost) heard = Date.now();
  place.className = lost ? "lost" : "";
  show(place, h("span", { class: "dot" }), lost ? `Connection lost. What you see is from ${heard ? clock(heard) : "before"}; trying again …` : "Live");
};

function signInPage(problem) {
  leave();
  me = null;
  who();
  show(document.getElementById("nav"));
  document.title = "Sign in · Tenure";
  const submit = async (event) => {
    event.preventDefault();
    const field = event.target.elements.token;
    try { await signIn(field.value.trim()); field.value = ""; start(); } catch (error) { signInPage(error.message); }
  };
  show(main, h("section", { class: "signin", "data-key": "signin" }, h("h1", { tabindex: "-1" }, "Sign in"),
    h("form", { onsubmit: submit },
      h("label", null, "Token", h("input", { name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": "token-help" })),
      h("p", { class: "small soft", id: "token-help" }, "A token of this server, as tenure token makes them. It is kept in a cookie that scripts cannot read, until the browser is closed or the token expires."),
      problem && h("p", { class: "problem", role: "alert" }, problem),
      h("button", { class: "main", type: "submit" }, "Sign in"))));
}

async function start() {
  try {
    me = await view("me");
    setClock(me.now_ms);
  } catch (error) {
    if (error.status === 401) { signInPage(); return; }
    show(main, h("h1", null, "This cannot be shown"), h("p", { class: "problem", role: "alert" }, error.message), h("button", { onclick: start }, "Try again"));
    return;
  }
  who();
  route();
}

onSignedOut(() => signInPage());
window.addEventListener("hashchange", route);
keepAges();
start();
