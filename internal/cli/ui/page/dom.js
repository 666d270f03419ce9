// Elements of the page. Everything from the cluster becomes text: nothing here parses HTML.

// element returns an element. Properties are set as such; children are elements or text.
export function element(tag, properties = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role") e.setAttribute(name, value);
    else e[name] = value;
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return e;
}

// put sets the text of an element if it differs.
export function put(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// keyed makes the children of parent those of items, in order. An element stays as long as its
// key does, and so does the focus in it. make returns a new element, update changes it.
export function keyed(parent, items, key, make, update) {
  const known = parent.known ??= new Map();
  const stay = new Set();
  let next = parent.firstChild;
  for (const item of items) {
    const k = key(item);
    stay.add(k);
    let e = known.get(k);
    if (!e) known.set(k, e = make(item));
    update(e, item);
    if (e === next) next = next.nextSibling;
    else parent.insertBefore(e, next);
  }
  for (const [k, e] of known) {
    if (!stay.has(k)) {
      e.remove();
      known.delete(k);
    }
  }
}

const two = (n) => String(n).padStart(2, "0");

// clock returns a time of today as 09:30:00, and of another day with its date.
export function clock(text) {
  const t = new Date(text);
  if (Number.isNaN(t.getTime())) return "";
  const time = `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
  if (t.toDateString() === new Date().toDateString()) return time;
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${time}`;
}

// span returns a duration in seconds as 12 s, 4 min, 3 h or 2 d.
export function span(seconds) {
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

// plural returns "1 pod" or "2 pods".
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

// count returns a number with separators; a large one, as of IPv6, as 9.2 × 10¹⁸.
export function count(n) {
  if (n < 1e9) return n.toLocaleString("en");
  const [digits, power] = n.toExponential(1).split("e+");
  return `${digits} × 10${[...power].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]).join("")}`;
}
