// Draws the grid of layers and KV heads, with K and V apart. Colours show either the bits of quantized pages
// or the bytes that are held now.

export const bytesText = (n) => {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return `${(n / size).toPrecision(3)} ${unit}`;
  return `${n} B`;
};

export function make(name, parent, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  parent?.append(element);
  return element;
}

// Returns a colour for a share of 0 to 1. colorOfBits() maps 2 to 8 bits onto that range, on a logarithmic
// scale.
function heat(share) {
  const s = Math.min(Math.max(share, 0), 1);
  const [from, to, part] = s < 0.5 ? ["low", "middle", 2 * s] : ["middle", "high", 2 * s - 1];
  return `color-mix(in oklab, var(--heat-${to}) ${(100 * part).toFixed(0)}%, var(--heat-${from}))`;
}
const colorOfBits = (bits) => heat((Math.log2(bits) - 1) / 2);

const HINT = "Point to a cell, or select it with the arrow keys, to see its format.";

export class CacheGrid {
  constructor(host) {
    this.modes = make("div", host, "modes");
    this.modes.setAttribute("role", "group");
    this.modes.setAttribute("aria-label", "Colour by");
    this.buttons = ["bits", "bytes"].map((mode) => {
      const button = make("button", this.modes, "", mode === "bits" ? "Bits" : "Bytes now");
      button.type = "button";
      button.addEventListener("click", () => { this.mode = mode; this.#paint(); });
      return button;
    });
    this.mode = "bits";
    this.pointed = null;  // the number of the cell that the pointer or the arrow keys have selected
    this.cells = [];
    this.grid = make("div", host, "grid");
    this.grid.setAttribute("role", "application");
    this.grid.tabIndex = 0;
    this.tip = make("p", host, "hint tip", HINT);
    this.tip.setAttribute("aria-live", "polite");
    this.scale = make("p", host, "scale hint");
    make("span", this.scale, "", "0");
    make("i", this.scale, "ramp");
    this.most = make("span", this.scale);
    this.legend = make("ul", host, "legend");
    const show = (event) => {
      const cell = event.target.closest("i");
      if (cell) this.#point(cell);
    };
    this.grid.addEventListener("pointerover", show);
    this.grid.addEventListener("pointerdown", show);
    this.grid.addEventListener("keydown", (event) => this.#go(event));
  }

  #point(cell) {
    this.cells[this.pointed]?.classList.remove("pointed");
    this.pointed = this.cells.indexOf(cell);
    cell.classList.add("pointed");
    this.#describe();
  }

  // Moves the selection with the arrow keys. The list of cells holds one row of layers after another.
  #go(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.cache?.layers, ArrowUp: -this.cache?.layers }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const cell = this.cells[this.pointed === null ? 0 : this.pointed + step];
    if (cell) this.#point(cell);
  }

  // Empties the grid before another recipe's cache is shown.
  clear() {
    for (const host of [this.grid, this.legend]) host.replaceChildren();
    this.cache = null;
    this.cells = [];
    this.pointed = null;
    this.tip.textContent = HINT;
  }

  // `cache` is the response of GET /cache; `bytes` is { k, v }, the bytes by cell of the selected sequences.
  update(cache, bytes) {
    if (!this.cache) this.#build(cache);
    this.cache = cache;
    this.bytes = bytes;
    this.#paint();
  }

  // Builds the grid: a column for each layer and a row for each side of each KV head.
  #build({ layers, kv_heads: heads, heads_by_layer: byLayer, plan }) {
    const headsOf = (layer) => byLayer ? byLayer[layer][0] : heads;
    this.firstCells = [0];  // the cells of layer i begin at number firstCells[i]
    for (let layer = 0; layer < layers; ++layer) this.firstCells.push(this.firstCells[layer] + headsOf(layer));
    this.grid.style.setProperty("--layers", layers);
    this.cells = [];
    for (let head = 0; head < heads; ++head) {
      for (const side of ["k", "v"]) {
        make("span", this.grid, "name", `${side.toUpperCase()} ${head}`);
        for (let layer = 0; layer < layers; ++layer) {
          if (head >= headsOf(layer)) {
            make("span", this.grid);
            this.cells.push(null);  // this layer has fewer heads
            continue;
          }
          const cell = make("i", this.grid, "cell");
          cell.dataset.cell = this.firstCells[layer] + head;
          cell.dataset.side = side;
          this.cells.push(cell);
        }
      }
    }
    make("span", this.grid, "name");
    const axis = make("span", this.grid, "axis");
    for (const text of ["layer 0", String(layers - 1)]) make("span", axis, "", text);
    for (const [i, format] of plan.formats.entries()) {
      const item = make("li", this.legend);
      make("i", item, "cell").style.background = colorOfBits(format.bits);
      const count = [...plan.k, ...plan.v].filter((f) => f === i).length;
      make("span", item, "", `${format.format}, ${format.bits.toFixed(2)} bits`);
      make("span", item, "hint", `${count} of ${2 * plan.k.length} · ${format.kernel}${format.fallback ? ` (${format.fallback})` : ""}`);
    }
    this.grid.setAttribute("aria-label", `${layers} layers by ${heads} KV heads, K and V: ` +
      plan.formats.map((f) => `${f.format} of ${f.bits.toFixed(2)} bits`).join(", "));
  }

  #paint() {
    if (!this.cache) return;  // no response has come yet
    const { plan } = this.cache;
    const most = Math.max(1, ...this.bytes.k, ...this.bytes.v);
    this.scale.hidden = this.mode === "bits";
    this.most.textContent = bytesText(most);
    this.legend.classList.toggle("plain", this.mode === "bytes");
    for (const [i, mode] of ["bits", "bytes"].entries()) this.buttons[i].setAttribute("aria-pressed", String(mode === this.mode));
    for (const cell of this.cells) {
      if (!cell) continue;
      const { cell: at, side } = cell.dataset;
      cell.style.background = this.mode === "bits" ? colorOfBits(plan.formats[plan[side][at]].bits) : heat(this.bytes[side][at] / most);
    }
    if (this.pointed !== null) this.#describe();
  }

  #describe() {
    const { plan } = this.cache;
    const { cell, side } = this.cells[this.pointed].dataset;
    const format = plan.formats[plan[side][cell]];
    const name = format.transforms ? `${format.transforms}:${format.format}` : format.format;
    const layer = this.firstCells.findLastIndex((first) => first <= cell);
    this.tip.textContent = `Layer ${layer}, KV head ${cell - this.firstCells[layer]}, ${side.toUpperCase()}: ${name}, ${format.bits.toFixed(2)} bits, ` +
      `${format.page_bytes} bytes per page; holds ${bytesText(this.bytes[side][cell])} now.`;
  }
}
