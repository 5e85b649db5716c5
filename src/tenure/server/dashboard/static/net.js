// Requests to this server, and views that stay up to date. The token is in a cookie that no script can read.

import { setClock } from "./dom.js";

export class Refused extends Error {
  constructor(status, code, detail) { super(detail); this.status = status; this.code = code; }
}

let signedOut = () => {};
export function onSignedOut(then) { signedOut = then; }

async function ask(method, path, body, headers = {}) {
  const own = { "Tenure-Dashboard": "1", Accept: "application/json", ...headers };
  if (body !== undefined) own["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers: own, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", redirect: "error" });
  } catch { throw new Refused(0, "unreachable", "The server cannot be reached."); }
  const text = await answer.text();
  let found = {};
  try { found = text ? JSON.parse(text) : {}; } catch { /* no JSON: the status tells */ }
  if (!answer.ok) {
    if (answer.status === 401 && path !== "/session") signedOut();
    throw new Refused(answer.status, found.code ?? "", found.detail ?? `The server answered ${answer.status}.`);
  }
  return found;
}

export const view = (name, query = {}) => ask("GET", address(name, query));
export const signIn = (token) => ask("POST", "/session", { token });
export const signOut = () => ask("DELETE", "/session");

/** Calls an operation of the protocol on a queue or a schedule; the server checks the caller's scope. */
export const act = (me, method, tenant, queue, path, body) => change(me, method, tenant, `/v1/queues/${encodeURIComponent(queue)}${path}`, body);
export const actOnSchedule = (me, tenant, name, verb) => change(me, "POST", tenant, `/v1/schedules/${encodeURIComponent(name)}/${verb}`);

function change(me, method, tenant, path, body) {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const headers = { "Tenure-Request": [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("") };
  if (me.operator) headers["Tenure-Tenant"] = tenant;
  return ask(method, path, body, headers);
}

function address(name, query) {
  const said = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `/ui/${name}` + (said.length ? "?" + new URLSearchParams(said) : "");
}

/** The state of the page's streams, for the line below the header: {lost, since}. */
export const connection = { streams: new Set(), changed: () => {} };

/** Passes a view to `shown` at first and whenever it changes, until `close`. Polls if there is no stream. */
export class Live {
  constructor(name, query, shown, failed) {
    Object.assign(this, { url: address(name, query), shown, failed, lost: false, heard: Date.now(), closed: false, tries: 0 });
    connection.streams.add(this);
    this.connect();
    this.watch = setInterval(() => { if (Date.now() - this.heard > 15000) this.fail(); }, 1000);
  }

  connect() {
    if (this.closed) return;
    this.source?.close();
    this.source = new EventSource(this.url);
    this.source.addEventListener("now", (event) => { setClock(JSON.parse(event.data).now_ms); this.alive(); });
    this.source.addEventListener("view", (event) => { this.alive(); this.shown(JSON.parse(event.data)); });
    this.source.addEventListener("ended", () => this.fail());
    this.source.onerror = () => this.fail();
  }

  alive() {
    this.heard = Date.now();
    this.tries = 0;
    if (this.lost) { this.lost = false; }
    connection.changed();
  }

  /** The stream has ended: find out why, and retry with growing pauses. */
  async fail() {
    if (this.closed || this.waiting) return;
    this.source.close();
    this.heard = Date.now();
    this.waiting = true;
    try {
      await ask("GET", this.url);
    } catch (error) {
      if (this.closed) return;
      if (error.status >= 400 && error.status < 500 && error.status !== 429) { this.close(); this.failed(error); return; }
      this.lost = true;
      connection.changed();
    }
    const seconds = Math.min(10, 0.5 * 2 ** this.tries++);
    setTimeout(() => { this.waiting = false; this.connect(); }, seconds * 1000);
  }

  close() {
    this.closed = true;
    this.source?.close();
    clearInterval(this.watch);
    connection.streams.delete(this);
    connection.changed();
  }
}
