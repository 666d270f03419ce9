// A map of cells on a canvas: thousands of cells cost one element. The canvas has the focus,
// and the cell under the arrow keys is described aloud.

const grids = new WeakMap();
const visible = new IntersectionObserver((entries) => {
  for (const e of entries) {
    const grid = grids.get(e.target);
    grid.seen = e.isIntersecting;
    if (grid.seen && grid.stale) grid.draw();
  }
}, { rootMargin: "200px" });
const resized = new ResizeObserver((entries) => {
  for (const e of entries) grids.get(e.target).resize(e.contentRect.width);
});

// group is the number of columns after which there is more space, if the layout has it apart.
const group = 8;

// Grid is a map. The options are:
//   cells()          the cells, null for a gap
//   layout(width)    the columns, size and gap of cells, and the space apart between groups
//   paint(c, cell, x, y, size, colours)  draws one cell
//   dim(cell)        whether a cell is not among those searched for
//   describe(cell)   its text
//   open(cell, grid) is called for Enter or a click
//   leave(grid, step) is called when an arrow key leaves the map
export class Grid {
  constructor(page, options) {
    this.page = page;
    Object.assign(this, options);
    this.at = -1; // the cell under the keys
    this.width = 0;
    this.seen = false;
    this.stale = true;
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "map");
    grids.set(this.canvas, this);
    visible.observe(this.canvas);
    this.canvas.addEventListener("pointermove", (e) => this.#hover(e));
    this.canvas.addEventListener("pointerleave", () => this.page.tip(null));
    this.canvas.addEventListener("click", (e) => this.#click(e));
    this.canvas.addEventListener("keydown", (e) => this.#key(e));
    this.canvas.addEventListener("focus", () => this.focus());
    this.canvas.addEventListener("blur", () => { this.draw(); this.page.tip(null); });
  }

  // watch has the map follow the width of its parent, which is in the document.
  watch(parent) {
    grids.set(parent, this);
    resized.observe(parent);
  }

  // end forgets the map.
  end(parent) {
    resized.unobserve(parent);
    visible.unobserve(this.canvas);
  }

  resize(width) {
    if (Math.floor(width) === this.width) return;
    this.width = Math.floor(width);
    this.draw();
  }

  // draw draws the map, or later if it is not in view.
  draw() {
    if (this.width === 0) return;
    const cells = this.cells();
    const { columns, size, gap, apart } = this.shape = { apart: 0, ...this.layout(this.width) };
    const rows = Math.max(1, Math.ceil(cells.length / columns));
    const width = columns * (size + gap) - gap + Math.floor((columns - 1) / group) * apart;
    const height = rows * (size + gap) - gap;
    const ratio = window.devicePixelRatio || 1;
    const c = this.canvas;
    if (c.style.height !== `${height}px` || c.style.width !== `${width}px`) {
      c.style.width = `${width}px`;
      c.style.height = `${height}px`;
    }
    this.stale = !this.seen;
    if (this.stale) return;
    if (c.width !== Math.round(width * ratio) || c.height !== Math.round(height * ratio)) {
      c.width = Math.round(width * ratio);
      c.height = Math.round(height * ratio);
    }
    const paper = c.getContext("2d");
    paper.setTransform(ratio, 0, 0, ratio, 0, 0);
    paper.clearRect(0, 0, width, height);
    const colours = this.page.colours;
    for (let i = 0; i < cells.length; i++) {
      if (cells[i] === null) continue;
      const { x, y } = this.#corner(i);
      paper.globalAlpha = this.dim(cells[i]) ? 0.15 : 1;
      this.paint(paper, cells[i], x, y, size, colours);
    }
    paper.globalAlpha = 1;
    if (document.activeElement === c && cells[this.at]) this.#ring(paper, colours.focus);
  }

  #ring(paper, colour) {
    const { x, y } = this.#corner(this.at);
    paper.strokeStyle = colour;
    paper.lineWidth = 2;
    paper.strokeRect(x - 1, y - 1, this.shape.size + 2, this.shape.size + 2);
  }

  #corner(i) {
    const { columns, size, gap, apart } = this.shape;
    const column = i % columns;
    return { x: column * (size + gap) + Math.floor(column / group) * apart, y: Math.floor(i / columns) * (size + gap) };
  }

  #index(e) {
    const { columns, size, gap, apart } = this.shape;
    const wide = group * (size + gap) + apart;
    const inGroup = Math.min(group - 1, Math.floor((e.offsetX % wide) / (size + gap)));
    const column = Math.floor(e.offsetX / wide) * group + inGroup;
    if (column < 0 || column >= columns) return -1;
    return Math.floor(e.offsetY / (size + gap)) * columns + column;
  }

  #hover(e) {
    const i = this.#index(e);
    const cell = this.cells()[i] ?? null;
    this.canvas.style.cursor = cell && this.open ? "pointer" : "default";
    this.page.tip(cell && this.describe(cell, i), e.clientX, e.clientY);
  }

  #click(e) {
    const i = this.#index(e);
    const cell = this.cells()[i];
    if (!cell) return;
    this.at = i;
    this.draw();
    this.open(cell, this, i);
  }

  // focus puts the keys on a cell: the last one, or the first.
  focus() {
    const cells = this.cells();
    if (!cells[this.at]) this.at = cells.findIndex((c) => c !== null);
    this.draw();
    this.#speak();
  }

  // select focuses the map with the keys on a cell.
  select(cell) {
    this.at = this.cells().indexOf(cell);
    this.canvas.focus();
    this.draw();
  }

  #speak() {
    const cell = this.cells()[this.at];
    if (!cell) return;
    const text = this.describe(cell, this.at);
    this.page.speak(text);
    const box = this.canvas.getBoundingClientRect();
    const { x, y } = this.#corner(this.at);
    this.page.tip(text, box.left + x + this.shape.size, box.top + y + this.shape.size);
  }

  #key(e) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.shape.columns, ArrowDown: this.shape.columns };
    const cells = this.cells();
    if (e.key === "Enter" && cells[this.at]) {
      e.preventDefault();
      this.open(cells[this.at], this, this.at);
      return;
    }
    let next = this.at;
    if (e.key === "Home") next = cells.findIndex((c) => c !== null);
    else if (e.key === "End") next = cells.findLastIndex((c) => c !== null);
    else if (e.key in steps) {
      do next += steps[e.key]; while (next >= 0 && next < cells.length && !cells[next]);
    } else return;
    e.preventDefault();
    if (next < 0 || next >= cells.length) {
      this.leave(this, Math.sign(steps[e.key]));
      return;
    }
    this.at = next;
    this.draw();
    this.#speak();
  }
}
