// Elements from text, never from markup: what a message holds is shown, not read.

const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const SVG = "http://www.w3.org/2000/svg";

function escaped(char) {
  const code = char.codePointAt(0);
  return SHORT[char] ?? (code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`);
}

/** Text with escapes for what controls or reorders it: as the command line shows it. */
export const safe = (text) => String(text).replace(UNSAFE, escaped);

/** The same in lines: line ends and tabs stay. */
export const safeBlock = (text) => String(text).replace(UNSAFE, (char) => (char === "\n" || char === "\t" ? char : escaped(char)));

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

/** What comes from a message. */
export const text = (value, tag = "span") => el(tag, { class: "text", dir: "auto" }, safe(value));

// -- numbers and times -----------------------------------------------------------------------------------------

export const number = (value) => Number(value).toLocaleString("en");
export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

const UNITS = [["y", 31536000], ["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** A length of time in its two largest units, as the command line writes it. */
export function span(seconds) {
  if (seconds < 1) return `${Math.floor(seconds * 1000)}ms`;
  if (seconds < 10) return `${seconds.toFixed(1).replace(".0", "")}s`;
  const whole = Math.floor(seconds);
  for (let i = 0; i < UNITS.length; i += 1) {
    const [unit, size] = UNITS[i];
    if (whole >= size) {
      const rest = i + 1 < UNITS.length ? Math.floor((whole % size) / UNITS[i + 1][1]) : 0;
      return rest ? `${Math.floor(whole / size)}${unit} ${rest}${UNITS[i + 1][0]}` : `${Math.floor(whole / size)}${unit}`;
    }
  }
  return "0s";
}

export const away = (seconds) => (seconds > 0 ? `in ${span(seconds)}` : `${span(-seconds)} ago`);

const two = (n) => String(n).padStart(2, "0");

/** A moment in the zone of this browser: the time, and the date unless it is today. */
export function moment(us) {
  const at = new Date(us / 1000);
  if (Number.isNaN(at.getTime())) return "after the calendar";
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return at.toDateString() === new Date().toDateString() ? time : `${day} ${time}`;
}

export const clock = (us) => moment(us).slice(-8, -3);

/** The clock of the server, carried on by that of this browser. */
export const server = {
  us: Date.now() * 1000,
  read: performance.now(),
  set(us) { this.us = us; this.read = performance.now(); },
  now() { return this.us + (performance.now() - this.read) * 1000; },
};

export function when(us) {
  const at = new Date(us / 1000);
  const iso = Number.isNaN(at.getTime()) ? undefined : at.toISOString();
  return el("time", { datetime: iso, title: iso }, `${moment(us)}, ${away((us - server.now()) / 1e6)}`);
}

export const bytes = (n) => (n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 1048576).toFixed(1)} MiB`);
