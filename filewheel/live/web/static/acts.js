// Acts: each is proposed by the server, named in a question, and done after a yes.

import { access, post, setToken, troubleOf } from "./api.js";
import { byId, el, safe, text } from "./dom.js";

const YES = { cancel: "Cancel", reschedule: "Fire now", kill: "Kill", revive: "Revive", drop: "Delete", pause: "Pause", resume: "Resume" };

function opened(title, body, buttons) {
  const dialog = byId("ask");
  const form = el("form", { method: "dialog" }, el("h2", { id: "ask-title" }, title), body, el("div", { class: "bar" }, buttons));
  dialog.replaceChildren(form);
  dialog.showModal();
  return dialog;
}

const closing = (label) => el("button", { type: "button", value: "no", onclick: () => byId("ask").close() }, label);

/** Ask, act, and report; call `after` when something was done. */
export async function act(verb, ids, after) {
  let proposal;
  try {
    ({ proposal } = await post(`api/acts/${verb}`, { ids }));
  } catch (error) {
    opened("This cannot be done", troubleOf(error), [closing("Close")]);
    return;
  }
  if (!proposal.messages.length) {
    opened("Nothing to do", el("p", {}, text(`${proposal.missing_text}.`)), [closing("Close")]);
    after();
    return;
  }
  const list = el("ul", {}, proposal.messages.slice(0, 5).map((m) => el("li", {}, text(m.topic || "(no topic)"), " ", text(m.text.slice(0, 80)))));
  ask(verb, proposal.question, list, { ids }, after);
}

function ask(verb, question, body, fields, after) {
  const yes = el("button", { type: "button", class: "danger", value: "yes" }, YES[verb]);
  const dialog = opened(safe(question), body, [closing("No"), yes]);
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    try {
      const { done } = await post(`api/acts/${verb}`, { ...fields, confirm: true });
      dialog.close();
      opened("Done", el("p", { id: "done" }, safe(done.text)), [closing("Close")]);
    } catch (error) {
      opened("This was not done", troubleOf(error), [closing("Close")]);
    }
    after();
  });
}

/** Pause or resume the wheel, a topic or a schedule. */
export async function hold(verb, { what, name, why = "" }, after) {
  try {
    const { proposal } = await post(`api/acts/${verb}`, { what, name, why });
    if (proposal.needed) ask(verb, proposal.question, [], { what, name, why }, after);
    else opened("Nothing to do", el("p", {}, safe(proposal.question)), [closing("Close")]);
  } catch (error) {
    opened("This cannot be done", troubleOf(error), [closing("Close")]);
  }
}

/** A button that pauses or resumes; none where this tab may not act. */
export const holdButton = (verb, pause, after) =>
  access.token ? el("button", { type: "button", "data-verb": verb, onclick: () => hold(verb, pause, after) }, YES[verb]) : null;

/** Buttons for one message; none where this tab may not act. */
export function buttons(message, after) {
  if (!access.token) return [];
  if (message.runs) return [el("button", { type: "button", "data-verb": "kill", onclick: () => act("kill", [message.id], after) }, "Kill")];
  const verbs = message.died || message.dead ? [["revive", "Revive"], ["drop", "Delete"]] : [["reschedule", "Fire now"], ["cancel", "Cancel"]];
  return verbs.map(([verb, label]) =>
    el("button", { type: "button", "data-verb": verb, onclick: () => act(verb, [message.id], after) }, label));
}

export function askToken(after) {
  const input = el("input", { type: "password", id: "token", autocomplete: "off", "aria-label": "Token", required: true });
  const wrong = el("p", { class: "late", role: "alert" });
  const use = el("button", { type: "submit" }, "Use it");
  const note = el("p", { class: "dim" }, "It is in the file or variable that `filewheel serve` was given. It stays in this tab.");
  const dialog = opened("The token", [note, input, wrong], [closing("No"), use]);
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (await setToken(input.value)) {
      dialog.close();
      after();
    } else {
      await setToken(null);
      wrong.textContent = "This is not the token.";
    }
  });
}
