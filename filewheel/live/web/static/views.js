// The lists: messages and dead letters with search and pages, one message, schedules, topics, backups.

import { buttons, hold, holdButton } from "./acts.js";
import { access, get, troubleOf } from "./api.js";
import { lyingRows } from "./charts.js";
import { away, bytes, count, el, moment, number, safe, safeBlock, server, span, text, when } from "./dom.js";

const PAGE = 50;

function table(caption, heads, rows) {
  const head = el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name))));
  const body = el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, i) => {
    const attributes = { "data-label": heads[i], class: heads[i] === "Due" || heads[i] === "Next" || heads[i] === "Died" || heads[i] === "Ended" ? "time" : "" };
    return el("td", attributes, cell);
  }))));
  return el("table", {}, caption ? el("caption", {}, caption) : null, head, body);
}

const link = (id) => el("a", { href: `#/message/${id}`, class: "id" }, `${id.slice(0, 6)}…${id.slice(-4)}`);

function messageRows(messages, dead, again) {
  return messages.map((m) => {
    const at = dead ? m.died_us : m.due_us;
    const more = [m.key ? el("span", { class: "dim" }, " key ", text(m.key)) : null, m.schedule ? el("span", { class: "dim" }, " schedule ", text(m.schedule)) : null];
    const about = dead ? [text(m.reason ?? ""), el("br"), el("span", { class: "dim" }, text(m.text))] : [text(m.text), ...more];
    const state = dead ? "" : m.paused_by?.length ? "paused" : m.state === "running" ? "runs" : m.state === "claimed" ? m.state : m.waits ? "waits" : "";
    const time = state ? el("span", {}, when(at), " ", el("strong", {}, state)) : when(at);
    return [time, text(m.topic || m.schedule?.name || m.schedule || "(none)"), about, el("span", {}, link(m.id), " ", ...buttons(m, again))];
  });
}

export const messageTable = (caption, messages, dead, again) =>
  table(caption, [dead ? "Died" : "Due", "Topic", dead ? "Reason" : "Message", "Id"], messageRows(messages, dead, again));

/** Messages or dead letters: a search, a page, the next and the one before. */
export function messages(place, dead, given = {}) {
  let stack = [null];  // the ids after which the pages so far began
  let running = null;
  const day = (name, label) => el("label", {}, label, el("input", { name, type: "datetime-local", step: 1 }));
  const form = el(
    "form", { class: "search", role: "search" },
    el("label", { class: "wide" }, "Topic (* and ?), key or id", el("input", {
      name: "find", id: "find", value: given.find ?? "", placeholder: "mail*", maxlength: 1000, autocomplete: "off", spellcheck: "false",
    })),
    day("from", dead ? "Died from" : "Due from"),
    day("until", "until"),
    el("button", { type: "submit" }, "Search"),
  );
  const state = el("p", { class: "dim", role: "status", "aria-live": "polite" });
  const rows = el("div");
  const before = el("button", { type: "button", disabled: true, onclick: () => { stack.pop(); load(); } }, "Page before");
  const next = el("button", { type: "button", disabled: true, onclick: () => { stack.push(next.dataset.after); load(); } }, "Next page");
  const stop = el("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Stop");
  form.addEventListener("submit", (event) => { event.preventDefault(); stack = [null]; load(); });
  place.replaceChildren(el("h2", {}, dead ? "Dead letters" : "Pending messages"), form, state, rows, el("div", { class: "bar" }, before, next, stop));

  async function load() {
    running?.abort();
    const mine = (running = new AbortController());
    const found = [];
    let after = stack.at(-1);
    let scanned = 0;
    let page = null;
    stop.hidden = false;
    next.disabled = before.disabled = true;
    try {
      do {
        const query = new URLSearchParams({ limit: PAGE - found.length, dead: dead ? "1" : "" });
        if (form.find.value.trim()) query.set("find", form.find.value.trim());
        for (const name of ["from", "until"]) if (form[name].value) query.set(name, new Date(form[name].value).toISOString());
        if (after) query.set("after", after);
        page = await get(`api/messages?${query}`, { signal: mine.signal });
        if (page.exact) found.push({ ...rowOf(page.exact) });
        found.push(...page.messages);
        scanned += page.scanned;
        after = page.next;
        show(found, page, scanned, after && found.length < PAGE);
      } while (after && found.length < PAGE && !mine.signal.aborted);
    } catch (error) {
      if (mine !== running) return;
      if (error.name !== "AbortError") { state.replaceChildren(); rows.replaceChildren(troubleOf(error)); }
      else show(found, page, scanned, false, true);
    }
    if (mine !== running) return;
    stop.hidden = true;
    before.disabled = stack.length < 2;
    next.disabled = !after;
    next.dataset.after = after ?? "";
  }

  function show(found, page, scanned, goesOn, stopped) {
    const reached = page?.reached ? `, up to ${moment(Date.parse(page.reached) * 1000)}` : "";
    const looked = scanned > found.length ? `; looked at ${number(scanned)}${reached}` : "";
    const harm = page?.damaged ? `; ${count(page.damaged, "place is", "places are")} damaged: filewheel verify` : "";
    const words = found.length ? `${number(found.length)} shown` : dead ? "no dead letters that fit" : "nothing pending that fits";
    state.textContent = `${goesOn ? "searching: " : stopped ? "stopped: " : ""}${words}${looked}${harm}`;
    const nothing = !found.length;
    rows.replaceChildren(nothing ? "" : messageTable(null, found, dead || found[0].died !== undefined, load));
  }

  load();
  return () => running?.abort();
}

const rowOf = (m) => ({ ...m, text: m.call ?? m.payload ?? "(bytes)", died_us: m.died ? Date.parse(m.died) * 1000 : undefined, reason: m.headers["filewheel.reason"] });

function pairs(entries) {
  return el("dl", { class: "fields" }, entries.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

const HIDDEN = ["filewheel.key", "filewheel.reason", "filewheel.history", "filewheel.schedule", "filewheel.of_schedule", "filewheel.details"];

function payload(m) {
  if (m.call) return [];
  const note = m.payload_cut ? `, the first ${bytes(65536)} shown; filewheel inspect ID --body prints all` : "";
  const title = el("h2", {}, `Payload `, el("span", { class: "dim" }, `${bytes(m.size)}${note}`));
  return [title, m.size ? el("pre", { class: "text", dir: "auto", tabindex: "0" }, safeBlock(m.payload ?? `base64 ${m.payload_b64}`)) : el("p", { class: "dim" }, "empty")];
}

export async function message(place, id) {
  place.replaceChildren(el("p", { class: "dim" }, "looking"));
  try {
    const { message: m, state, run, history: past, paused_by: held } = await get(`api/messages/${encodeURIComponent(id)}`);
    const ended = past.length ? [el("h2", {}, "How its attempts ended"), historyTable(past)] : [];
    if (!m) {
      place.replaceChildren(el("h2", {}, "Not pending any more"), el("p", { class: "id" }, safe(id)), ...ended);
      return;
    }
    const again = () => message(place, id);
    const tries = (m.attempts ?? []).map((a) => [
      moment(Date.parse(a.at) * 1000), String(a.attempt + 1), text(a.error), a.details ? el("pre", { class: "text", dir: "auto", tabindex: "0" }, safeBlock(a.details)) : "",
    ]);
    const own = Object.entries(m.headers).filter(([name]) => !HIDDEN.includes(name));
    place.replaceChildren(
      el("h2", {}, m.dead ? "A dead letter" : "A pending message"),
      pairs([
        ["Id", el("span", { class: "id" }, m.id)], ["First id", m.root ? el("span", { class: "id" }, m.root) : null],
        ["Due", when(m.due_us)], ["Died", m.died ? when(Date.parse(m.died) * 1000) : null],
        ["Reason", m.headers["filewheel.reason"] ? text(m.headers["filewheel.reason"]) : null],
        ["Topic", text(m.topic || "(none)")], ["Key", m.headers["filewheel.key"] ? text(m.headers["filewheel.key"]) : null],
        ["Call", m.call ? text(m.call, "code") : null],
        ["Schedule", m.schedule ? text(`${m.schedule.name}${m.schedule.when ? `: ${m.schedule.when}` : ""}${m.schedule.tz ? ` in ${m.schedule.tz}` : ""}`) : null],
        ["State", state === "running" && run ? `runs for ${span(run.runs_s ?? 0)} in ${safe(run.where ?? "?")}` : state],
        ["Paused by", held ? text(held.join(", ")) : null], ["Waits", m.waits ? text(m.waits) : null],
        ["Try", m.died ? null : String(m.attempt + 1)], ["Enqueued", when(m.enqueued_us)],
      ]),
      el("div", { class: "bar" }, state === "running" ? buttons({ ...m, runs: true }, again) : [], buttons(m, again)),
      ...(tries.length ? [el("h2", {}, "Failed attempts"), table(null, ["At", "Try", "Error", "Its end"], tries)] : []),
      ...ended,
      ...(own.length ? [el("h2", {}, "Headers"), table(null, ["Name", "Value"], own.map(([name, value]) => [text(name), text(value)]))] : []),
      ...payload(m),
    );
  } catch (error) {
    place.replaceChildren(troubleOf(error));
  }
}

// -- what is paused --------------------------------------------------------------------------------------------

let pauses = [];

/** Take what is paused, as the stream has it; return whether that is new. */
export function setPauses(found) {
  const isNew = JSON.stringify(found) !== JSON.stringify(pauses);
  pauses = found;
  return isNew;
}

const pauseName = (p) => p.what === "wheel" ? "the wheel" : p.name ? `${p.what} ${safe(p.name)}` : "messages without a topic";

function pauseButton(schedule) {
  const isPaused = (pauses ?? []).some((p) => p.what === "schedule" && p.name === schedule);
  return holdButton(isPaused ? "resume" : "pause", { what: "schedule", name: schedule }, () => {});
}

/** A line for each pause, above every view; the view Pauses has those that are too many. */
export function pauseLines() {
  const shown = (pauses ?? []).slice(0, 5).map((p) => el("p", {}, el("strong", {}, "Paused: "), el("bdi", {}, pauseName(p)), " since ", moment(p.since_us), p.why ? ": " : "", p.why ? text(p.why) : "", " ", holdButton("resume", p, () => {})));
  return pauses?.length > 5 ? [...shown, el("p", {}, el("a", { href: "#/pauses" }, `and ${count(pauses.length - 5, "more pause")}`))] : shown;
}

export function pausesView(place) {
  const what = el("select", { name: "what" }, [["topic", "Topic (* and ?)"], ["schedule", "Schedule"], ["wheel", "The whole wheel"]].map(([value, label]) => el("option", { value }, label)));
  const name = el("input", { name: "name", id: "find", maxlength: 255, autocomplete: "off", spellcheck: "false", placeholder: "mail*" });
  const why = el("input", { name: "why", maxlength: 500, autocomplete: "off" });
  what.addEventListener("change", () => { name.disabled = what.value === "wheel"; });
  const form = el("form", { class: "search" }, el("label", {}, "What", what), el("label", { class: "wide" }, "Name", name), el("label", { class: "wide" }, "Why", why), el("button", { type: "submit" }, "Pause"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    hold("pause", { what: what.value, name: what.value === "wheel" ? "" : name.value, why: why.value }, () => {});
  });
  const rows = el("div");
  const show = () => {
    const words = pauses === null ? "unknown: see above" : "nothing is paused";
    rows.replaceChildren(pauses?.length ? table(null, ["What", "Since", "Why", "Act"], pauses.map((p) => [
      el("bdi", {}, pauseName(p)), moment(p.since_us), text(p.why), el("span", {}, holdButton("resume", p, () => {})),
    ])) : el("p", { class: "dim" }, words));
  };
  place.replaceChildren(el("h2", {}, "Pauses"), ...(access.token ? [form] : []), rows,
    el("p", { class: "dim" }, "What is paused keeps its due and waits; what runs goes on. It fires, or follows its lateness policy, after a resume."));
  show();
  addEventListener("pauses", show);
  return () => removeEventListener("pauses", show);
}

const counted = (fields) => `found ${away(-fields.age_s)}, in ${span(fields.took_s)}`;

export async function schedules(place) {
  place.replaceChildren(el("h2", {}, "Schedules"), el("p", { class: "dim" }, "looking through the wheel"));
  try {
    const found = await get("api/schedules");
    const next = (s, state) => state ? el("span", {}, when(s.next_us), " ", el("strong", {}, state)) : when(s.next_us);
    const rows = found.schedules.map((s) => [
      text(s.name), [text(s.when), s.tz ? el("span", { class: "dim" }, " ", text(s.tz)) : null],
      next(s, s.paused_by?.length ? "paused" : s.waits ? "waits" : ""), text(s.handler),
      [`missed: ${s.missed}; ${s.declared ? "declared in a program" : "started at run time"}`, s.waits ? el("span", { class: "dim" }, " ", text(s.waits)) : null],
      el("span", {}, link(s.id), " ", ...buttons({ id: s.id }, () => schedules(place)), pauseButton(s.name)),
    ]);
    const words = `${count(found.schedules.length, "schedule")}${found.cut ? " and more" : ""}; ${counted(found)}`;
    place.replaceChildren(el("h2", {}, "Schedules"), rows.length ? table(words, ["Name", "When", "Next", "Handler", "Rules", "Id"], rows) : el("p", { class: "dim" }, words));
  } catch (error) {
    place.replaceChildren(el("h2", {}, "Schedules"), troubleOf(error));
  }
}

// -- what runs, and how it ended -------------------------------------------------------------------------------

export const runsTable = (runs) => table(null, ["State", "Topic", "Where", "Try", "Id"], runs.map((r) => [
  r.runs_s === null ? r.state : `runs for ${span(r.runs_s)}`, text(r.topic || r.schedule || "(none)"), text(r.where ?? ""), String(r.attempt + 1), el("span", {}, link(r.id), " ", ...buttons({ ...r, runs: r.runs_s !== null }, () => {})),
]));

const BAD = ["retried", "dead", "killed", "skipped", "missed", "unknown"];

const historyTable = (ends) => table(null, ["Ended", "Outcome", "Topic", "Took", "Error", "Id"], ends.map((e) => [
  when(e.ended_us), el("span", { class: BAD.includes(e.outcome) ? "late" : "" }, `${e.outcome}${e.attempt ? `, try ${e.attempt + 1}` : ""}`),
  text(e.topic || e.schedule || "(none)"), e.took_us === null ? "" : span(e.took_us / 1e6), text(e.error), link(e.id),
]));

export async function history(place) {
  const topic = el("input", { name: "topic", id: "find", placeholder: "mail*", maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const failed = el("input", { type: "checkbox", name: "failed" });
  const form = el("form", { class: "search", role: "search" },
    el("label", { class: "wide" }, "Topic (* and ?)", topic), el("label", {}, "Only what failed", failed), el("button", { type: "submit" }, "Show"));
  const state = el("p", { class: "dim", role: "status", "aria-live": "polite" });
  const rows = el("div");
  place.replaceChildren(el("h2", {}, "History"), form, state, rows);
  async function load(event) {
    event?.preventDefault();
    const query = new URLSearchParams({ limit: 100 });
    if (topic.value.trim()) query.set("topic", topic.value.trim());
    if (failed.checked) query.set("failed", "1");
    try {
      const found = await get(`api/history?${query}`);
      state.textContent = found.history.length ? `the last ${count(found.history.length, "end")}` : "no attempt has ended that fits";
      rows.replaceChildren(found.history.length ? historyTable(found.history) : "");
    } catch (error) {
      rows.replaceChildren(troubleOf(error));
    }
  }
  form.addEventListener("submit", load);
  failed.addEventListener("change", load);
  load();
}

export async function topics(place) {
  place.replaceChildren(el("h2", {}, "Pending by topic"), el("p", { class: "dim" }, "counting: this reads every message"));
  try {
    const found = await get("api/topics");
    const rows = found.topics.map((t) => [el("a", { href: `#/messages?find=${encodeURIComponent(t.topic)}` }, text(t.topic || "(none)")), t.pending]);
    const more = found.more ? `; ${count(found.more, "more topic")}` : "";
    place.replaceChildren(el("h2", {}, "Pending by topic"), el("p", { class: "dim" }, `counted ${away(-found.age_s)}, in ${span(found.took_s)}${more}`), lyingRows(rows));
  } catch (error) {
    place.replaceChildren(el("h2", {}, "Pending by topic"), troubleOf(error));
  }
}

export function lag(one) {
  if (one.lag_messages === null) return "lag unknown";
  if (!one.lag_messages && !one.lag_bytes) return "in step";
  return `${count(one.lag_messages, "message")} behind${one.lag_s ? `, ${span(one.lag_s)}` : ""}`;
}

export async function backups(place) {
  const head = el("h2", {}, "Backups");
  try {
    const { set } = await get("api/backups");
    if (!set) {
      place.replaceChildren(head, el("p", {}, "This wheel has no backups: filewheel backup add DIR makes one."));
      return;
    }
    const rows = set.backups.map((one) => [
      text(one.path), one.mode, one.state === "current" ? one.state : el("span", { class: "late" }, one.state), lag(one),
      one.following ? "a replicator follows" : el("span", { class: "late" }, "no replicator follows"), text(one.why ?? ""),
    ]);
    const role = `This wheel is ${set.role === "primary" ? "the primary" : `a ${set.role}; the primary is ${safe(set.primary)}`}, epoch ${set.epoch}`;
    place.replaceChildren(head, el("p", {}, role), rows.length ? table(null, ["Wheel", "Mode", "State", "Behind", "Followed", "Why"], rows) : "no backups");
  } catch (error) {
    place.replaceChildren(head, troubleOf(error));
  }
}
