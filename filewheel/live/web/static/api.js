// The JSON behind the page. The token goes in a header, and stays in this tab.

import { byId, el, safe } from "./dom.js";

const KEY = "filewheel.token";
let token = sessionStorage.getItem(KEY);
export const access = { acts: false, token: false, reads: true };

// A link may bring it: `filewheel serve --token` prints one. It is taken out of the address at once.
const brought = /^#token=([\x21-\x7e]+)$/.exec(location.hash);
if (brought) {
  token = decodeURIComponent(brought[1]);
  sessionStorage.setItem(KEY, token);
  history.replaceState(null, "", location.pathname);
}

const headers = (more = {}) => (token ? { ...more, Authorization: `Bearer ${token}` } : more);

export class Refused extends Error {
  constructor(fields, status) {
    super(fields.message);
    this.fields = fields;
    this.status = status;
  }
}

async function read(response) {
  let fields;
  try {
    fields = await response.json();
  } catch {
    fields = { error: "failed", message: `the server answered ${response.status}`, hint: null };
  }
  if (!response.ok) throw new Refused(fields, response.status);
  return fields;
}

export const get = async (path, options = {}) => read(await fetch(path, { headers: headers(), ...options }));

export const post = async (path, fields) =>
  read(await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(fields) }));

export async function learnAccess() {
  Object.assign(access, await get("api/access"));
  const button = byId("token-button");
  button.hidden = !access.acts;
  button.textContent = access.token ? "Stop acting" : access.reads ? "Act with a token" : "Enter the token";
}

export async function setToken(text) {
  token = text || null;
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
  await learnAccess();
  return !token || access.token;
}

/** Events of the server, until `signal` aborts; reconnects when they end. A header with the token goes along. */
export async function events(handlers, signal) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      const response = await fetch("api/events", { headers: headers(), signal });
      if (!response.ok) await read(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        wait = 500;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const name = /^event: (.*)$/m.exec(part)[1];
          handlers[name]?.(JSON.parse(/^data: (.*)$/m.exec(part)[1]));
        }
      }
      handlers.lost(null);
    } catch (error) {
      if (signal.aborted) return;
      handlers.lost(error);
      if (error.status === 401) return;
    }
    await new Promise((resolve) => { setTimeout(resolve, wait); });
    wait = Math.min(wait * 2, 10000);
  }
}

export function trouble(fields) {
  return el(
    "div", { class: "trouble" }, el("p", {}, safe(fields.message)),
    fields.hint ? el("p", { class: "dim" }, `Try: ${safe(fields.hint)}`) : null,
  );
}

export const troubleOf = (error) =>
  trouble(error instanceof Refused ? error.fields : { message: `the server cannot be reached: ${error.message}`, hint: null });
