// The panels of the page. Each function draws one from the state.

import { clock, count, element, keyed, plural, put } from "./dom.js";
import { Grid } from "./grid.js";
import { address, mark, marks, nth, pod as paintPod } from "./paint.js";
import { addressesOf, byText, states } from "./state.js";

const byName = (a, b) => byText(a.name, b.name);

// legendOf fills a list with the marks of cells, drawn by paint.
function legendOf(list, items, page, paint) {
  keyed(list, items, (i) => i.name, (i) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    canvas.style.width = canvas.style.height = "12px";
    return element("li", { title: i.text }, canvas, element("span", {}, i.short ?? i.text), element("b", {}));
  }, (e, i) => {
    const canvas = e.firstChild;
    if (canvas.theme !== page.colours) {
      canvas.theme = page.colours;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = canvas.height = Math.round(12 * ratio);
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio);
      paint(c, i, page.colours);
    }
    put(e.lastChild, i.count === undefined ? "" : count(i.count));
  });
}

// drawStates draws the legend of pods, with counts.
export function drawStates(page, state) {
  const items = states.map((s) => ({ ...s, short: s.text.split(":")[0], count: state.counts[s.name] }));
  legendOf(document.getElementById("states"), items, page, (c, i, of) => mark(c, i.name, 0, 0, 12, of));
}

// sizeOfCells returns the size of cells for a number of pods in all.
function sizeOfCells(pods) {
  if (pods <= 300) return { size: 16, gap: 4 };
  if (pods <= 1500) return { size: 12, gap: 3 };
  return { size: 8, gap: 2 };
}

export function describePod(pod) {
  const parts = [pod.full, states.find((s) => s.name === pod.mark).text.split(":")[0]];
  if (pod.reason) parts.push(pod.reason);
  return [parts.join(" · "), addressesOf(pod).join(", "), pod.message].filter((t) => t).join("\n");
}

function card(page, node) {
  const grid = new Grid(page, {
    cells: () => page.state.nodes.get(node.name)?.places ?? [],
    layout: (width) => {
      const { size, gap } = sizeOfCells(page.state.pods.size);
      return { columns: Math.max(1, Math.floor((width + gap) / (size + gap))), size, gap };
    },
    paint: paintPod,
    dim: (pod) => page.found !== null && !page.found.has(pod),
    describe: describePod,
    open: (pod, from) => page.open(pod, from),
    leave: (from, step) => page.leave(from, step),
  });
  const box = element("div", { className: "cells" }, grid.canvas);
  const e = element("article", { className: "card" },
    element("h3", {}, element("span", { className: "name" }), element("span", { className: "quiet number" })),
    element("p", { className: "quiet blocks" }), element("p", { className: "problem", hidden: true }), box);
  e.grid = grid;
  grid.watch(box);
  return e;
}

// drawNodes draws the cards of nodes; all of them, or those that changed.
export function drawNodes(page, state, all) {
  const nodes = [...state.nodes.values()].sort(byName);
  const size = sizeOfCells(state.pods.size).size;
  all ||= page.cellSize !== size;
  page.cellSize = size;
  const parent = document.querySelector("#nodes .cards");
  keyed(parent, nodes, (n) => n.name, (n) => card(page, n), (e, n) => {
    if (!all && !state.dirtyNodes.has(n.name) && e.drawn) return;
    e.drawn = true;
    const [head, blocks, problem] = e.children;
    put(head.firstChild, n.name);
    put(head.lastChild, plural(n.pods, "pod"));
    const routed = n.row?.blocks ?? [];
    put(blocks, routed.length > 1 ? `${routed[0]} and ${routed.length - 1} more` : routed.join());
    blocks.title = routed.join(", ");
    const known = n.row !== null || state.rows.resource.get("nodenetworks.fairlead.dev")?.state === "Listed";
    const bad = known && !n.row?.ready;
    e.classList.toggle("bad", bad);
    e.classList.toggle("unknown", !known);
    const trouble = n.row?.reason ? `${n.row.reason}: ${n.row.message}` : bad && !n.row ? "Fairlead does not serve this node any more" : "";
    put(problem, trouble);
    problem.hidden = !trouble;
    e.grid.canvas.setAttribute("aria-label", `${n.name}${bad ? ", not ready" : ""}: ${plural(n.pods, "pod")}`);
    e.grid.draw();
  });
  put(document.getElementById("nodes-title"), `${plural(state.nodes.size, "node")}, ${plural(state.pods.size, "pod")}`);
  state.dirtyNodes.clear();
}

// bar returns a bar of shares; update it by setBar.
const bar = () => element("div", { className: "bar", "aria-hidden": "true" });

function setBar(e, shares) {
  const all = shares.reduce((sum, s) => sum + s.n, 0);
  keyed(e, shares.filter((s) => s.n > 0), (s) => s.name, (s) => element("span", { className: s.name }), (part, s) => {
    part.style.flexGrow = String(s.n / all);
  });
}

// cellsOf returns the cells of the map of a pool. A cell is the same object as long as its
// mark is.
function cellsOf(e) {
  const out = [];
  for (const block of e.row.map?.blocks ?? []) {
    for (let i = 0; i < 64; i++) {
      const c = block.slots[i] ?? " ";
      out.push(c === " " ? null : { mark: c, block, place: i });
    }
  }
  return out;
}

function poolCard(page) {
  const e = element("article", { className: "pool" },
    element("h3", {}, element("span", { className: "name" }), element("span", { className: "quiet number" })),
    bar(), element("p", { className: "quiet counts" }), element("p", { className: "problem", hidden: true }));
  const describe = (cell) => {
    const at = nth(cell.block.cidr, cell.place);
    const holder = cell.mark === "#" ? page.state.holder(at) : undefined;
    const text = [at, marks.find((m) => m.mark === cell.mark)?.text ?? ""];
    if (holder) text.push(holder.full);
    return text.join(" · ") + `\nblock ${cell.block.cidr}` + (cell.block.node ? ` on ${cell.block.node}` : "");
  };
  e.grid = new Grid(page, {
    cells: () => e.cells ?? [],
    layout: (width) => {
      const columns = width >= 64 * 5 ? 64 : 32;
      const step = Math.min(10, Math.floor((width + 1) / columns));
      const left = width + 1 - columns * step;
      return { columns, size: step - 1, gap: 1, apart: Math.max(0, Math.min(6, Math.floor(left / (columns / 8 - 1)))) };
    },
    paint: (c, cell, x, y, size, of) => address(c, cell.mark, x, y, size, of),
    dim: () => false,
    describe,
    open: (cell, from) => {
      const holder = page.state.holder(nth(cell.block.cidr, cell.place));
      if (holder) page.open(holder, from);
    },
    leave: (from, step) => page.leave(from, step),
  });
  const box = element("div", { className: "cells" }, e.grid.canvas);
  e.append(box, element("p", { className: "quiet more" }));
  e.grid.watch(box);
  return e;
}

const sharesOf = (v) => ["allocated", "cooling", "held", "reserved", "free"].map((name) => ({ name, n: v[name] ?? 0 }));

// drawPools draws the pools with their maps.
export function drawPools(page, state) {
  const shown = marks.filter((m) => "#~Hx.".includes(m.mark) || [...state.rows.pool.values()].some((p) => p.map?.damaged > 0) && m.mark === "?");
  legendOf(document.getElementById("marks"), shown, page, (c, i, of) => address(c, i.mark, 0, 0, 12, of));
  const pools = [...state.rows.pool.values()].sort(byName);
  keyed(document.querySelector("#pools .list"), pools, (p) => p.id, () => poolCard(page), (e, p) => {
    if (e.row === p && e.theme === page.colours) return;
    e.row = p;
    e.theme = page.colours;
    e.cells = cellsOf(e);
    const [head, shares, counts, problem, box, more] = e.children;
    const v = p.map ?? p;
    // The difference of large numbers is not exact, the sum is.
    const used = sharesOf(v).filter((s) => s.name !== "free").reduce((sum, s) => sum + s.n, 0);
    put(head.firstChild, p.name);
    put(head.lastChild, v.usable > 0 ? `${count(used)} of ${count(v.usable)} used` : "no addresses");
    setBar(shares, sharesOf(v));
    put(counts, sharesOf(v).filter((s) => s.n > 0).map((s) => `${count(s.n)} ${s.name === "allocated" ? "in use" : s.name}`).join(" · "));
    const trouble = p.mapError || (p.ready !== "True" ? `${p.reason}: ${p.message}` : p.exhausted ? "Exhausted: no address is free" : "");
    problem.hidden = !trouble;
    put(problem, trouble);
    box.hidden = e.cells.length === 0;
    const rest = [];
    if (p.map?.untouchedBlocks > 0) rest.push(`${plural(p.map.untouchedBlocks, "further block")} of 64 untouched`);
    if (p.moreBlocks > 0) rest.push(`${plural(p.moreBlocks, "block")} not drawn`);
    put(more, rest.join(" · "));
    more.hidden = more.textContent === "";
    e.grid.canvas.setAttribute("aria-label", `addresses of pool ${p.name}: ${counts.textContent}`);
    e.grid.draw();
  });
}

// drawNetworks draws the networks, the default one first.
export function drawNetworks(page, state) {
  const rows = [...state.rows.network.values()].sort((a, b) => (b.name === "default") - (a.name === "default") || byName(a, b));
  const largest = Math.max(1, ...rows.map((r) => r.interfaces));
  keyed(document.querySelector("#networks .list"), rows, (r) => r.id, () => element("div", { className: "line" },
    element("span", { className: "name" }), element("span", { className: "quiet kind" }), bar(), element("span", { className: "number" }),
    element("p", { className: "problem" })), (e, r) => {
    const [name, kind, shares, number, problem] = e.children;
    put(name, r.name);
    put(kind, r.type ?? "");
    setBar(shares, [{ name: "allocated", n: r.interfaces }, { name: "rest", n: largest - r.interfaces }]);
    put(number, plural(r.interfaces, "interface"));
    put(problem, r.problem ?? "");
    problem.hidden = !r.problem;
  });
}

// The marks of ports of OpenStack.
const portMarks = [
  { name: "used", text: "of pods", of: "#" }, { name: "cooling", text: "cooling", of: "~" }, { name: "ready", text: "ready", of: "." },
];

// drawPortPools draws the pools of ports of OpenStack, by node.
export function drawPortPools(page, state) {
  legendOf(document.getElementById("ports"), portMarks, page, (c, i, of) => address(c, i.of, 0, 0, 12, of));
  const rows = [...state.rows.portpool.values()].sort((a, b) => byText(a.node, b.node) || byName(a, b));
  keyed(document.querySelector("#portpools .list"), rows, (r) => r.id, () => element("div", { className: "line" },
    element("span", { className: "name" }), element("span", { className: "quiet kind" }), bar(), element("span", { className: "number" }),
    element("p", { className: "problem" })), (e, r) => {
    const [name, kind, shares, number, problem] = e.children;
    put(name, r.node);
    put(kind, r.network);
    setBar(shares, [{ name: "allocated", n: r.used }, { name: "cooling", n: r.cooling }, { name: "free", n: r.ready }]);
    put(number, `${r.used} used, ${r.ready} ready`);
    const trouble = r.message ? `${r.state}: ${r.message}` : r.state === "Drained" ? "drained: pods get ports of their own" : "";
    put(problem, trouble);
    problem.hidden = !trouble;
  });
}

// drawEvents draws the last events, the newest first.
export function drawEvents(page, state) {
  const rows = [...state.rows.event.values()].sort((a, b) => a.at < b.at ? 1 : a.at > b.at ? -1 : a.id < b.id ? -1 : 1).slice(0, 100);
  keyed(document.querySelector("#events .rows"), rows, (r) => r.id, () => element("li", {},
    element("time", {}), element("b", { className: "reason" }), element("span", { className: "about" }), element("span", { className: "note-text" })),
  (e, r) => {
    const [time, reason, about, note] = e.children;
    e.classList.toggle("warning", r.warning);
    put(time, clock(r.at));
    time.dateTime = r.at;
    put(reason, r.reason);
    const full = r.namespace ? `${r.namespace}/${r.name}` : r.name;
    const text = r.kind === "Pod" ? full : `${r.kind} ${full}`;
    if (about.textContent !== text) {
      about.replaceChildren(r.kind === "Pod"
        ? element("button", { type: "button", className: "link", onclick: (click) => page.open(r, click.currentTarget) }, text) : text);
    }
    put(note, r.note);
    note.title = r.note;
  });
}

// The resources of each panel, and its text without rows.
const needs = {
  nodes: { of: ["nodenetworks.fairlead.dev", "pods", "podattachments.fairlead.dev"], rows: (s) => s.nodes.size, none: "No nodes yet." },
  pools: { of: ["ippools.fairlead.dev", "ipblocks.fairlead.dev", "ipreservations.fairlead.dev"], rows: (s) => s.rows.pool.size, none: "No pools yet." },
  networks: { of: ["network-attachment-definitions.k8s.cni.cncf.io"], rows: (s) => s.rows.network.size, none: "No networks.", optional: true },
  portpools: { of: ["portpools.fairlead.dev"], rows: (s) => s.rows.portpool.size, none: "", optional: true },
  events: { of: ["events of fairlead-controller", "events of fairlead.dev/node"], rows: (s) => s.rows.event.size, none: "No events in the last hour." },
};

// drawNotes lists the resources that the user may not see, or that cannot be read.
export function drawNotes(state) {
  for (const [panel, need] of Object.entries(needs)) {
    const notes = [];
    for (const name of need.of) {
      const r = state.rows.resource.get(name) ?? { state: "Loading" };
      if (r.state === "Forbidden") notes.push({ id: name, text: `Not permitted: you may not list ${name}.`, more: r.message });
      if (r.state === "Missing" && !need.optional) notes.push({ id: name, text: `This cluster has no ${name}: Fairlead's CRDs are not installed.`, more: r.message });
      if (r.state === "Failing") notes.push({ id: name, text: `No ${name}: ${r.message}. It is tried again.`, more: "" });
    }
    const loading = need.of.some((n) => (state.rows.resource.get(n)?.state ?? "Loading") === "Loading");
    const section = document.getElementById(panel);
    if (notes.length === 0 && need.rows(state) === 0) notes.push({ id: "none", text: loading ? "Loading." : need.none, more: "" });
    if (panel === "portpools") section.hidden = need.rows(state) === 0 && !notes.some((n) => n.id !== "none");
    keyed(section.querySelector(".notes"), notes, (n) => n.id, () => element("p", { className: "note" }), (e, n) => {
      put(e, n.text);
      e.title = n.more ?? "";
    });
  }
}
