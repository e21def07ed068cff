// The page: which view is shown, the stream of what changes, and the tiles beside the wheel.

import { askToken } from "./acts.js";
import { access, events, get, learnAccess, setToken, trouble, troubleOf } from "./api.js";
import { setAhead } from "./charts.js";
import { away, byId, count, el, moment, number, safe, server, span } from "./dom.js";
import { backups, history, lag, message, messages, messageTable, pauseLines, pausesView, runsTable, schedules, setPauses, topics } from "./views.js";
import { setTurning, turn } from "./wheel.js";

const VIEWS = [["now", "Now"], ["messages", "Messages"], ["schedules", "Schedules"], ["dead", "Dead letters"], ["history", "History"], ["topics", "Topics"], ["pauses", "Pauses"], ["backups", "Backups"]];
let leave = null;
let stream = null;
let nextRead = 0;

// -- now -------------------------------------------------------------------------------------------------------

function tile(name, value, more, late) {
  return el("div", { "data-tile": name }, el("dt", {}, name), el("dd", { class: late ? "late" : "" }, value, more ? el("small", {}, more) : null));
}

function backupTile(set) {
  if (!set) return ["none", "filewheel backup add", false];
  if (set.role !== "primary") return [`this is a ${set.role}`, safe(set.primary), true];
  const bad = set.backups.filter((one) => one.state !== "current" || !one.following);
  const words = set.backups.map((one) => `${one.state}, ${lag(one)}${one.following ? "" : ", not followed"}`).join("; ");
  return [set.backups.length ? `${set.backups.length - bad.length} of ${set.backups.length} well` : "none", words, bad.length > 0];
}

function ratesTile(rates) {
  if (!rates) return [["Fired", "none lately", "no scheduler publishes, and nothing ended"], ["Late", "unknown", ""]];
  const per = rates.per_s;
  const age = rates.source === "history" ? "from the history of runs" : rates.stale ? "its scheduler has ended or is stuck" : `published ${away(-rates.age_s)}`;
  const fired = per ? `${per.fired.toFixed(1)}/s` : "…";
  const enqueued = per && "enqueued" in per ? `enqueued there ${per.enqueued.toFixed(1)}/s, ` : "";
  const more = per ? `${enqueued}retried ${per.retried.toFixed(1)}/s, dead ${per.dead.toFixed(1)}/s; ${age}` : age;
  const late = rates.late_p99_s === null ? "none started" : `${span(rates.late_p50_s)} / ${span(rates.late_p99_s)}`;
  return [["Fired", fired, more, rates.stale], ["Late, median / 99 %", late, per ? `over ${span(rates.over_s)}` : "since it started"]];
}

function runsWords(running) {
  if (running.stale) return "the keeper is stuck, or stopped";
  const waits = running.claimed - running.running;
  const first = running.runs[0]?.runs_s;
  return [first === null || first === undefined ? "" : `the first for ${span(first)}`, waits > 0 ? `${number(waits)} more claimed` : ""].filter(Boolean).join("; ");
}

function showTiles(live) {
  const s = live.stats;
  const nextUs = live.turning?.next_us ?? null;
  const keeper = !s ? "unknown" : s.keeper_up ? `process ${s.keeper_pid ?? "unknown"}` : "none running";
  const role = live.set?.role ?? "primary";
  const fires = role === "primary";
  const tiles = s ? [
    tile("Pending", number(s.pending), s.age_s > 2 ? `counted ${span(s.age_s)} ago` : ""),
    ...(live.turning?.overdue_paused ? [tile("Due and paused", `${number(live.turning.overdue_paused)}${live.turning.overdue_is_more ? " or more" : ""}`, "waits for a resume")] : []),
    ...(live.turning?.overdue || live.turning?.overdue_is_more ? [tile("Overdue", `${number(live.turning.overdue)}${live.turning.overdue_is_more ? " or more" : ""}`, `the first since ${span(live.lag_s)}`, live.lag_s > 60)] : []),
    tile("Next due", nextUs === null ? "nothing" : moment(nextUs), nextUs === null ? "" : away((nextUs - server.now()) / 1e6), live.lag_s > 60),
    tile("Keeper", keeper, s.keeper_up ? (s.keeper_namespace ? "of another pid namespace" : "") : fires ? "nothing fires" : `a ${role} fires nothing`, !s.keeper_up && fires && s.pending > 0),
    ...(live.running ? [tile("Runs now", number(live.running.running), runsWords(live.running), live.running.stale)] : []),
    tile("Dead letters", number(s.dead), "", s.dead > 0),
    ...(s.damaged || s.quarantined ? [tile("Damage", `${count(s.damaged, "place")}, ${number(s.quarantined)} in quarantine`, "filewheel verify names each", true)] : []),
  ] : [];
  byId("tiles").replaceChildren(...tiles, ...ratesTile(live.rates).map((one) => tile(...one)), tile("Backups", ...backupTile(live.set)));
  const runs = live.running?.runs ?? [];
  // Not under the finger of somebody who is about to press a key there.
  if (!byId("runs").contains(document.activeElement)) byId("runs").replaceChildren(...(runs.length ? [el("h2", {}, "Runs now"), runsTable(runs)] : []));
  setTurning(live.turning, s ? s.pending : null, nextUs);
}

async function showNext() {
  if (byId("view-now").hidden || Date.now() < nextRead || (nextRead && byId("next").contains(document.activeElement))) return;
  nextRead = Date.now() + 5000;
  try {
    const page = await get("api/messages?limit=8");
    const again = () => { nextRead = 0; showNext(); };
    byId("next").replaceChildren(el("h2", {}, "Due first"), page.messages.length ? messageTable(null, page.messages, false, again) : el("p", { class: "dim" }, "nothing is pending"));
  } catch (error) {
    byId("next").replaceChildren(troubleOf(error));
  }
}

let pausedFor = null;

function showPaused(found) {
  const isNew = setPauses(found);
  if (!isNew && pausedFor === access.token) return;
  pausedFor = access.token;
  byId("paused").replaceChildren(...pauseLines());
  dispatchEvent(new Event("pauses"));
}

// -- the stream ------------------------------------------------------------------------------------------------

const handlers = {
  live(fields) {
    server.set(fields.now_us);
    byId("wheel-name").textContent = safe(fields.wheel);
    document.title = `${safe(fields.wheel.split("/").at(-1))}: filewheel`;
    byId("state").textContent = `live, ${moment(fields.now_us)}${access.token ? "; may act" : ""}`;
    byId("troubles").replaceChildren(...fields.troubles.map(trouble), ...fields.notes.map((note) => trouble({ message: note })));
    showPaused(fields.paused);
    showTiles(fields);
    showNext();
  },
  ahead: setAhead,
  trouble(fields) {
    byId("state").textContent = "the wheel cannot be read";
    byId("troubles").replaceChildren(trouble(fields));
  },
  lost(error) {
    byId("state").textContent = "not connected; trying again";
    if (error) byId("troubles").replaceChildren(troubleOf(error));
  },
};

function follow() {
  stream?.abort();
  stream = null;
  if (document.hidden || !(access.reads || access.token)) return;
  stream = new AbortController();
  events(handlers, stream.signal);
}

// -- views -----------------------------------------------------------------------------------------------------

function route() {
  const [, name = "now", rest = ""] = /^#\/([a-z]*)(?:[/?](.*))?$/.exec(location.hash) ?? [];
  const view = name || "now";
  leave?.();
  leave = null;
  for (const link of byId("nav").children) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  byId("paused").hidden = view === "pauses";  // which has all of them
  byId("view-now").hidden = view !== "now";
  const place = byId("view-other");
  place.hidden = view === "now";
  place.replaceChildren();
  if (view === "messages") leave = messages(place, false, Object.fromEntries(new URLSearchParams(rest)));
  else if (view === "dead") leave = messages(place, true);
  else if (view === "message") message(place, decodeURIComponent(rest));
  else if (view === "schedules") {
    const show = () => schedules(place);
    show();
    addEventListener("pauses", show);
    leave = () => removeEventListener("pauses", show);
  }
  else if (view === "history") history(place);
  else if (view === "topics") topics(place);
  else if (view === "pauses") leave = pausesView(place);
  else if (view === "backups") backups(place);
  else { nextRead = 0; showNext(); }
}

async function start() {
  byId("nav").replaceChildren(...VIEWS.map(([name, label]) => el("a", { href: `#/${name}`, "data-view": name }, label)));
  byId("foot").textContent = "Times are in the zone of this browser. Keys: / search, n now, m messages, d dead letters, h history, s schedules, p pauses.";
  try {
    await learnAccess();
  } catch (error) {
    handlers.lost(error);
  }
  byId("token-button").addEventListener("click", async () => {
    if (access.token) { await setToken(null); route(); follow(); } else askToken(() => { route(); follow(); });
  });
  if (!access.reads) askToken(() => { route(); follow(); });
  addEventListener("hashchange", () => { route(); byId("main").focus({ preventScroll: true }); });
  document.addEventListener("visibilitychange", follow);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || byId("ask").open) return;
    const to = { n: "now", m: "messages", d: "dead", h: "history", s: "schedules", t: "topics", p: "pauses", b: "backups" }[event.key];
    if (to) location.hash = `#/${to}`;
    else if (event.key === "/") { event.preventDefault(); if (!byId("find")) location.hash = "#/messages"; setTimeout(() => byId("find")?.focus()); }
  });
  setInterval(turn, 250);
  route();
  follow();
}

start();
