// The time ahead as bars: the next hour, the next day, and what lies beyond.

import { byId, clock, count, el, number, span, svg } from "./dom.js";

const STEP = { hour: "a minute", day: "half an hour" };

function chart(name, view) {
  const counts = view.counts;
  const total = counts.reduce((a, b) => a + b, 0);
  const most = Math.max(...counts, 1);
  const startUs = Date.parse(view.start) * 1000;
  const at = (i) => startUs + i * view.step_s * 1e6;
  const bars = counts.map((due, i) => {
    const height = due ? Math.max(3, (due / most) * 100) : 0;
    const words = `${clock(at(i))}: ${count(due, "message")}`;
    return svg("rect", { x: i + 0.1, y: 100 - height, width: 0.8, height, "data-count": due }, svg("title", {}, words));
  });
  const words = total ? `${count(total, "message")}, at most ${number(most)} in ${STEP[name]}` : "nothing due";
  const ticks = [0, 1, 2, 3, 4].map((n) => el("span", {}, clock(at(Math.round((n * counts.length) / 4)))));
  return el(
    "div", { class: "chart", "data-view": name },
    el("h2", {}, `Next ${name} `, el("span", { class: "dim" }, words)),
    svg("svg", { viewBox: `0 0 ${counts.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Next ${name}: ${words}` }, bars),
    el("div", { class: "axis", "aria-hidden": "true" }, ticks),
  );
}

export function lyingRows(rows) {
  const most = Math.max(...rows.map(([, value]) => value), 1);
  return el("div", { class: "rows" }, rows.map(([label, value]) => [
    label,
    el("span", {}, number(value)),
    svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { x: 0, y: 0, height: 10, width: value ? Math.max(0.5, (value / most) * 100) : 0 })),
  ]));
}

export function setAhead(fields) {
  const beyond = Object.entries(fields.beyond).map(([label, value]) => [el("span", {}, label), value]);
  const age = fields.age_s > 5 ? `counted ${span(fields.age_s)} ago` : "";
  byId("ahead").replaceChildren(
    chart("hour", fields.hour), chart("day", fields.day),
    el("div", { class: "chart" }, el("h2", {}, "Beyond ", el("span", { class: "dim" }, age)), lyingRows(beyond)),
  );
}
