// The page: it reads the stream, and draws the panels that changed, at most once a frame.

import { element, keyed, put } from "./dom.js";
import { drawEvents, drawNetworks, drawNodes, drawNotes, drawPools, drawPortPools, drawStates } from "./panels.js";
import { colours } from "./paint.js";
import { State, addressesOf, byText, states } from "./state.js";
import { Story } from "./story.js";

const $ = (id) => document.getElementById(id);
const story = new Story();
const search = $("search");

// page is shared by the panels.
const page = {
  state: new State({}),
  colours: colours(),
  found: null, // the pods that were searched for; null if nothing is

  // open shows the story of a pod; from has the focus afterwards.
  open(pod, from) {
    page.tip(null);
    story.open(pod.namespace, pod.name, from?.canvas ?? from);
  },

  // leave moves the focus to the next map, or the one before.
  leave(grid, step) {
    const all = [...document.querySelectorAll("main canvas[tabindex]")];
    const next = all[all.indexOf(grid.canvas) + step];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  },

  // tip shows a text beside a place of the window; null hides it.
  tip(text, x, y) {
    const tip = $("tip");
    tip.hidden = !text;
    if (!text) return;
    put(tip, text);
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 8))}px`;
    tip.style.top = `${y + 16 + height > innerHeight ? Math.max(4, y - height - 10) : y + 16}px`;
  },

  speak: (text) => put($("voice"), text),
};

let due = false;

// draw draws in the next frame.
function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    const state = page.state;
    const dirty = state.dirty;
    state.dirty = new Set();
    if (dirty.has("pod") && page.found !== null) find();
    if (dirty.has("pod") || dirty.has("node") || dirty.has("resource")) {
      drawStates(page, state);
      drawNodes(page, state, dirty.has("all") || dirty.has("resource"));
    }
    if (dirty.has("pool")) drawPools(page, state);
    if (dirty.has("network")) drawNetworks(page, state);
    if (dirty.has("portpool")) drawPortPools(page, state);
    if (dirty.has("event")) drawEvents(page, state);
    drawNotes(state);
    if (story.full !== null && state.changed.has(story.full)) story.refresh();
    state.changed.clear();
  });
}

function redraw() {
  page.colours = colours();
  for (const kind of ["all", "node", "pod", "pool", "portpool"]) page.state.dirty.add(kind);
  draw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

function connected(how, text) {
  $("connection").className = how;
  put($("connection").lastChild, text);
}

// connect reads the stream. The browser connects again by itself; the picture stays until all
// rows of the new stream are there.
function connect() {
  const stream = new EventSource("stream");
  let next = null;
  stream.addEventListener("start", (e) => { next = new State(JSON.parse(e.data)); });
  stream.addEventListener("rows", (e) => {
    (next ?? page.state).apply(JSON.parse(e.data));
    if (!next) draw();
  });
  stream.addEventListener("ready", () => {
    next.sort();
    page.state = next;
    next = null;
    const { server, namespace, version } = page.state.info;
    put($("cluster"), namespace ? `${server}, namespace ${namespace}` : server);
    put($("version"), version);
    connected("live", "live");
    page.state.dirty.add("all");
    draw();
  });
  stream.addEventListener("error", () => {
    connected("lost", "no answer from fairlead ui: trying again");
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  });
}

// find marks the pods that the search names, and lists the first.
function find() {
  page.found = page.state.find(search.value);
  const list = $("found");
  const shown = document.activeElement === search && page.found !== null;
  const first = shown ? [...page.found].sort((a, b) => byText(a.full, b.full)).slice(0, 8) : [];
  keyed(list, first, (p) => p.id, (p) => element("li", { role: "option", id: `found-${p.id}`, onpointerdown: (e) => { e.preventDefault(); choose(p); } },
    element("span", { className: "name" }), element("span", { className: "quiet" })), (e, p) => {
    e.pod = p;
    put(e.firstChild, p.full);
    put(e.lastChild, [states.find((s) => s.name === p.mark).text.split(":")[0], p.node, addressesOf(p)[0] ?? ""].join("  "));
  });
  list.hidden = first.length === 0;
  search.setAttribute("aria-expanded", String(!list.hidden));
  if (page.found !== null) page.speak(`${page.found.size} found`);
  pick(0);
}

// pick marks the found pod that Enter opens, step places from the present one.
function pick(step) {
  const items = [...$("found").children];
  const now = items.findIndex((i) => i.getAttribute("aria-selected") === "true");
  const next = items[Math.max(0, Math.min(items.length - 1, now + step))];
  for (const i of items) i.setAttribute("aria-selected", String(i === next));
  if (next) search.setAttribute("aria-activedescendant", next.id);
  else search.removeAttribute("aria-activedescendant");
}

function choose(pod) {
  $("found").hidden = true;
  search.setAttribute("aria-expanded", "false");
  page.open(pod, search);
}

search.addEventListener("input", () => { find(); page.state.dirty.add("all").add("node"); draw(); });
search.addEventListener("focus", find);
search.addEventListener("blur", () => { $("found").hidden = true; });
search.addEventListener("keydown", (e) => {
  const chosen = [...$("found").children].find((i) => i.getAttribute("aria-selected") === "true");
  if (e.key === "ArrowDown") pick(1);
  else if (e.key === "ArrowUp") pick(-1);
  else if (e.key === "Enter" && chosen) choose(chosen.pod);
  else return;
  e.preventDefault();
});

document.addEventListener("keydown", (e) => {
  if (e.key === "/" && document.activeElement !== search && !e.ctrlKey && !e.metaKey) {
    e.preventDefault();
    search.focus();
    search.select();
  } else if (e.key === "Escape" && !story.close() && search.value !== "") {
    search.value = "";
    search.dispatchEvent(new Event("input"));
  }
});

connect();
