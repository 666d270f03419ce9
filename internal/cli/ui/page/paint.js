// The look of cells. Each state has a shape beside its colour.

// colours returns the colours of the style sheet, which follow the theme.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["plugged", "waiting", "leaving", "lost", "failing", "free", "cooling", "held", "reserved", "withheld", "surface", "focus"];
  return Object.fromEntries(names.map((n) => [n, style.getPropertyValue(`--${n}`).trim()]));
}

// outline draws a hollow cell.
function outline(c, colour, x, y, size) {
  const w = size >= 10 ? 2 : 1.5;
  c.strokeStyle = colour;
  c.lineWidth = w;
  c.strokeRect(x + w / 2, y + w / 2, size - w, size - w);
}

// half fills the lower half of a cell with an outline.
function half(c, colour, x, y, size) {
  c.fillStyle = colour;
  c.fillRect(x, y + Math.ceil(size / 2), size, Math.floor(size / 2));
  outline(c, colour, x, y, size);
}

// stroke draws diagonals of a cell: one, or a cross.
function stroke(c, colour, x, y, size, cross) {
  const m = size * 0.24;
  c.strokeStyle = colour;
  c.lineWidth = Math.max(1.2, size / 8);
  c.beginPath();
  c.moveTo(x + m, y + size - m);
  c.lineTo(x + size - m, y + m);
  if (cross) {
    c.moveTo(x + m, y + m);
    c.lineTo(x + size - m, y + size - m);
  }
  c.stroke();
}

function fill(c, colour, x, y, size) {
  c.fillStyle = colour;
  c.fillRect(x, y, size, size);
}

// pod draws the cell of a pod.
export function pod(c, p, x, y, size, of) {
  mark(c, p.mark, x, y, size, of);
}

// mark draws the cell of a state of a pod.
export function mark(c, name, x, y, size, of) {
  switch (name) {
    case "plugged": fill(c, of.plugged, x, y, size); break;
    case "waiting": outline(c, of.waiting, x, y, size); break;
    case "leaving": half(c, of.leaving, x, y, size); break;
    case "lost":
      outline(c, of.lost, x, y, size);
      stroke(c, of.lost, x, y, size, false);
      break;
    case "failing":
      fill(c, of.failing, x, y, size);
      stroke(c, of.surface, x, y, size, true);
  }
}

// The marks of addresses, in the order of the legend, by the characters of a map.
export const marks = [
  { mark: "#", name: "allocated", text: "in use" },
  { mark: "~", name: "cooling", text: "cooling" },
  { mark: "H", name: "held", text: "held for a claim" },
  { mark: "x", name: "reserved", text: "reserved" },
  { mark: ".", name: "free", text: "free" },
  { mark: "?", name: "damaged", text: "damaged record" },
  { mark: "-", name: "withheld", text: "excluded, the gateway, or an edge" },
];

// address draws the cell of an address, whose mark is a character of a map.
export function address(c, character, x, y, size, of) {
  switch (character) {
    case "#": fill(c, of.plugged, x, y, size); break;
    case "~":
      fill(c, of.free, x, y, size);
      c.fillStyle = of.cooling;
      c.fillRect(x, y + Math.floor(size / 2), size, Math.ceil(size / 2));
      break;
    case "H":
      fill(c, of.held, x, y, size);
      c.fillStyle = of.surface;
      c.fillRect(x + size * 0.33, y + size * 0.33, size * 0.34, size * 0.34);
      break;
    case "x": fill(c, of.reserved, x, y, size); break;
    case "?":
      fill(c, of.failing, x, y, size);
      stroke(c, of.surface, x, y, size, true);
      break;
    case "-":
      c.fillStyle = of.withheld;
      c.fillRect(x + size * 0.3, y + size * 0.3, size * 0.4, size * 0.4);
      break;
    case ".": fill(c, of.free, x, y, size);
  }
}

// nth returns the address at a place of a block in CIDR form.
export function nth(cidr, place) {
  const base = cidr.split("/")[0];
  if (!base.includes(":")) {
    let n = base.split(".").reduce((sum, part) => sum * 256 + Number(part), 0) + place;
    const parts = [];
    for (let i = 0; i < 4; i++, n = Math.floor(n / 256)) parts.unshift(n % 256);
    return parts.join(".");
  }
  // Blocks of IPv6 begin at a multiple of 64, so that the last group has no carry.
  const groups = base.split(":");
  const last = parseInt(groups.at(-1) || "0", 16) + place;
  if (place === 0) return base;
  const address = groups.slice(0, -1).join(":") + ":" + last.toString(16);
  // A single group of zeros is written out.
  return address.split(":").filter((g) => g).length === 7 ? address.replace("::", ":0:") : address;
}
