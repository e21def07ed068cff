// The wheel as it turns: a slot for each second of a minute, in its place on the dial; the hand is now.
// What stands in a slot is due when the hand next reaches it.

import { byId, count, el, number, server, span, svg } from "./dom.js";

const SLOTS = 60;
const INNER = 78;
const ROOM = 62;
const MIDDLE = 160;

let turning = null;
let shown = null;

const at = (second, radius) => {
  const angle = (second * 2 * Math.PI) / SLOTS;
  return [MIDDLE + radius * Math.sin(angle), MIDDLE - radius * Math.cos(angle)];
};

function drawn() {
  const slots = [];
  const marks = [];
  for (let second = 0; second < SLOTS; second += 1) {
    const [x, y] = at(second, INNER);
    slots.push(svg("line", { class: "slot", x1: x, y1: y, x2: x, y2: y }, svg("title")));
    if (second % 5 === 0) {
      const [tx, ty] = at(second, INNER + ROOM + 9);
      marks.push(svg("text", { class: "tick", x: tx, y: ty }, String(second)));
    }
  }
  const hand = svg("line", { class: "hand", x1: MIDDLE, y1: MIDDLE - INNER + 16, x2: MIDDLE, y2: MIDDLE - INNER - ROOM - 4 });
  const hub = svg("text", { class: "hub", x: MIDDLE, y: MIDDLE });
  const line = svg("text", { class: "hub-line", x: MIDDLE, y: MIDDLE + 18 });
  const late = svg("text", { class: "hub-late", x: MIDDLE, y: MIDDLE + 34 });
  const picture = svg(
    "svg", { viewBox: "4 4 312 312", class: "wheel", role: "img" },
    svg("circle", { class: "rail", cx: MIDDLE, cy: MIDDLE, r: INNER - 3 }), slots, marks, hand, hub, line, late,
  );
  const caption = el("figcaption");
  byId("wheel").replaceChildren(picture, caption);
  return { picture, slots, hand, hub, line, late, caption, turns: 0, second: null };
}

/** Take what the server counted. */
export function setTurning(fields, pending, nextUs) {
  turning = fields && { ...fields, pending, nextUs };
  turn();
}

/** Draw the present second. */
export function turn() {
  shown ??= drawn();
  if (!turning) return;
  const nowUs = server.now();
  const now = Math.floor(nowUs / 1e6);
  const ahead = [];
  for (let i = 0; i < SLOTS; i += 1) ahead.push(turning.counts[now + i - turning.start_s] ?? 0);
  const most = Math.max(...ahead, 1);
  const total = ahead.reduce((a, b) => a + b, 0);
  ahead.forEach((due, i) => {
    const second = (now + i) % SLOTS;
    const line = shown.slots[second];
    const length = due ? Math.max(2, (due / most) * ROOM) : 0;
    const [x, y] = at(second, INNER + length);
    line.setAttribute("x2", x);
    line.setAttribute("y2", y);
    line.dataset.second = now + i;
    line.dataset.count = due;
    line.firstChild.textContent = `${count(due, "message")} due ${i ? `in ${i} s` : "now"}`;
  });
  const place = now % SLOTS;
  if (shown.second !== null && place < shown.second) shown.turns += 1;  // on, not back, after a whole turn
  shown.second = place;
  shown.hand.setAttribute("transform", `rotate(${(shown.turns * SLOTS + place) * 6} ${MIDDLE} ${MIDDLE})`);
  shown.hub.textContent = turning.pending === null ? "?" : number(turning.pending);
  shown.hub.setAttribute("font-size", String(turning.pending).length > 7 ? "19" : "26");
  const next = turning.nextUs === null ? null : (turning.nextUs - nowUs) / 1e6;
  shown.line.textContent = next === null ? "pending" : next > 0 ? `pending, next in ${span(next)}` : "pending";
  const overdue = turning.overdue ? `${number(turning.overdue)}${turning.overdue_is_more ? " or more" : ""} overdue` : "";
  shown.late.textContent = overdue;
  const words = `The next minute: ${count(total, "message")}, at most ${number(Math.max(...ahead))} in a second`;
  shown.picture.setAttribute("aria-label", `${words}${overdue && `; ${overdue}`}`);
  const cut = turning.cut ? "; too many to count in time: the later seconds are too low" : "";
  shown.caption.textContent = `${words}${cut}. A slot is a second; the hand is now.`;
}
