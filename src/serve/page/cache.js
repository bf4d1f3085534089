// Shows the cache next to the conversation, from GET /cache.
import { getJson } from "./api.js";
import { CacheGrid, bytesText, make } from "./cache_grid.js";

const BUSY_MS = 500, IDLE_MS = 2000;  // milliseconds between two requests
const MOST_CELLS = 512;               // a sequence's map has at most this many cells; in a longer sequence, a cell
                                      // stands for several pages
const KINDS = [["sealed", "sealed"], ["sink", "sink"], ["protected", "protected, masks"], ["tail", "tail"]];
const all = (bytes) => KINDS.reduce((sum, [kind]) => sum + bytes[kind], 0);  // sums the bytes of all kinds of pages
const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

export class CachePane {
  constructor(host) {
    this.host = host;
    this.chosen = null;  // the id of the chosen sequence; null shows all sequences together
    this.rates = { read: 0, generated: 0 };
    make("h2", host, "", "KV cache");
    this.recipes = make("div", host, "modes");
    this.recipes.setAttribute("role", "group");
    this.recipes.setAttribute("aria-label", "The cache of");
    this.headline = make("p", host, "headline");
    this.bars = make("div", host, "bars");
    this.facts = make("dl", host, "facts");
    const map = this.#section("Pages", "One cell is a page of 128 tokens.");
    this.mapLegend = make("p", map, "map-legend");
    for (const [kind, text] of [["sealed", "sealed"], ["shared", "sealed and shared"], ["tail", "tail, unquantized"], ["freed", "freed"]]) {
      const item = make("span", this.mapLegend);
      make("i", item, `page ${kind}`);
      item.append(text);
    }
    this.map = make("ul", map, "map");
    this.grid = new CacheGrid(this.#section("Layers and heads"));
    this.drawn = new Map();  // maps a sequence's id to the contents of its cells
  }

  #section(title, hint = "") {
    const section = make("section", this.host);
    make("h3", section, "", title);
    if (hint) make("p", section, "hint", hint);
    return section;
  }

  // `recipes` is a list of { model, recipe }; the pane shows one of them.
  choose(recipes) {
    const show = (chosen) => {
      this.model = chosen.model;
      this.cache = null;
      this.chosen = null;
      this.rates = { read: 0, generated: 0 };
      this.drawn.clear();
      this.map.replaceChildren();
      this.grid.clear();
      for (const [i, button] of [...this.recipes.children].entries()) button.setAttribute("aria-pressed", String(recipes[i] === chosen));
      this.look();
    };
    for (const each of recipes) {
      const button = make("button", this.recipes, "", each.recipe);
      button.type = "button";
      button.addEventListener("click", () => show(each));
    }
    show(recipes[0]);
  }

  // Polls GET /cache while the page is visible.
  async run() {
    while (true) {
      let pause = IDLE_MS;
      if (!document.hidden) {
        try {
          const { model } = this;
          const cache = await getJson(model ? `/cache?model=${encodeURIComponent(model)}` : "/cache");
          if (model === this.model) this.#update(cache);
          if (cache.sequences.some((s) => s.request)) pause = BUSY_MS;
        } catch (error) {
          this.headline.textContent = `The cache cannot be shown: ${error.message}.`;
        }
      }
      await new Promise((resolve) => { this.wake = resolve; setTimeout(resolve, pause); });
    }
  }

  look() {
    this.wake?.();
  }

  #update(cache) {
    const { cache: before } = this;
    if (before && cache.seconds > before.seconds) {
      for (const name of ["read", "generated"])
        this.rates[name] = (cache.tokens[name] - before.tokens[name]) / (cache.seconds - before.seconds);
    }
    this.cache = cache;
    if (!cache.sequences.some((s) => s.id === this.chosen)) this.chosen = null;
    const shown = this.chosen === null ? cache.sequences : cache.sequences.filter((s) => s.id === this.chosen);
    this.#headline(shown);
    this.#bars(shown);
    this.#facts();
    this.#map();
    const sums = (side) => cache.plan[side].map((_, i) => shown.reduce((n, s) => n + s[`${side}_bytes`][i], 0));
    this.grid.update(cache, { k: sums("k"), v: sums("v") });
    this.host.dataset.ready = "true";
  }

  #headline(shown) {
    const { plan, name } = this.cache;
    const bytes = shown.reduce((n, s) => n + all(s.bytes), 0), bf16 = shown.reduce((n, s) => n + s.bf16_bytes, 0);
    this.headline.replaceChildren();
    if (bytes === 0) {
      make("strong", this.headline, "", `${plan.bits.toFixed(2)} bits`);
      this.headline.append(` per value at the full context, with ${name}. Nothing is cached now.`);
      return;
    }
    make("strong", this.headline, "", `${(bf16 / bytes).toFixed(2)}×`);
    this.headline.append(` ${bf16 >= bytes ? "smaller" : "the size"} than BF16 for ${this.chosen === null ? `${count(shown.length, "sequence")} of ` : ""}` +
      `${count(shown.reduce((n, s) => n + s.tokens, 0), "token")}: ${((16 * bytes) / bf16).toFixed(2)} bits per value.`);
  }

  #bars(shown) {
    const bf16 = shown.reduce((n, s) => n + s.bf16_bytes, 0);
    const parts = KINDS.map(([kind, text]) => [kind, text, shown.reduce((n, s) => n + s.bytes[kind], 0)]);
    const most = Math.max(bf16, parts.reduce((n, p) => n + p[2], 0), 1);
    this.bars.replaceChildren();
    const bar = (name, pieces) => {
      make("span", this.bars, "name", name);
      const line = make("div", this.bars, "bar");
      for (const [kind, text, bytes] of pieces) {
        if (bytes === 0) continue;
        const piece = make("i", line, kind);
        piece.style.width = `${(100 * bytes) / most}%`;
        piece.title = `${text}: ${bytesText(bytes)}`;
      }
      make("span", this.bars, "size", bytesText(pieces.reduce((n, p) => n + p[2], 0)));
    };
    bar("this cache", parts);
    bar("BF16", [["bf16", "BF16", bf16]]);
    const held = parts.filter((p) => p[2] > 0).map(([, text, bytes]) => `${text} ${bytesText(bytes)}`);
    make("p", this.bars, "hint", held.join(" · "));
  }

  #facts() {
    const { memory, tokens } = this.cache;
    const prompts = tokens.read + tokens.cached;
    const rows = [
      ["Decode", `${this.rates.generated.toFixed(1)} tokens/s`],
      ["Prefill", `${this.rates.read.toFixed(0)} tokens/s`],
      ["Reused", prompts === 0 ? "–" : `${((100 * tokens.cached) / prompts).toFixed(0)} % of ${count(prompts, "prompt token")}`],
      ["Memory", `${bytesText(memory.pages)} of ${bytesText(memory.limit)}`],
      ["Saved by sharing", bytesText(memory.saved_by_sharing)],
    ];
    const { prefix_disk: disk } = this.cache;
    if (disk) rows.push(["On disk", `${bytesText(disk.bytes)} of ${bytesText(disk.limit)}, ${count(disk.files, "file")}`]);
    this.facts.replaceChildren();
    for (const [name, value] of rows) {
      make("dt", this.facts, "", name);
      make("dd", this.facts, "", value);
    }
  }

  #map() {
    const { sequences } = this.cache;
    if (sequences.length === 0) {
      this.map.replaceChildren();
      this.drawn.clear();
      make("li", this.map, "hint", "The cache holds no sequence now.");
      return;
    }
    const rows = [...sequences].sort((a, b) => Boolean(b.request) - Boolean(a.request) || b.id - a.id);
    const nodes = rows.map((s) => this.#row(s));
    if (nodes.some((node, i) => this.map.children[i] !== node) || this.map.children.length !== nodes.length) this.map.replaceChildren(...nodes);
    for (const id of [...this.drawn.keys()]) if (!rows.some((s) => s.id === id)) this.drawn.delete(id);
  }

  // Returns the row of a sequence. The row stays as long as the sequence exists, and its cells are drawn
  // again only when they change.
  #row(s) {
    let row = this.drawn.get(s.id);
    if (!row) {
      row = { node: make("li", null) };
      row.button = make("button", row.node);
      row.button.type = "button";
      row.button.addEventListener("click", () => {
        this.chosen = this.chosen === s.id ? null : s.id;
        this.#update(this.cache);
      });
      row.cells = make("div", row.node, "pages");
      row.cells.setAttribute("aria-hidden", "true");
      this.drawn.set(s.id, row);
    }
    row.button.setAttribute("aria-pressed", String(this.chosen === s.id));
    row.button.replaceChildren();
    make("strong", row.button, "", this.#stateOf(s));
    make("span", row.button, "hint", `${count(s.tokens, "token")} · ${bytesText(all(s.bytes))} · ${s.bits.toFixed(2)} bits`);
    const pages = JSON.stringify(s.pages);
    if (row.pages !== pages) this.#cells(row.cells, s.pages);
    row.pages = pages;
    return row.node;
  }

  #stateOf(s) {
    if (s.state === "kept") return "In the prefix cache";
    if (s.state === "session") return `Session ${s.session}`;
    if (s.state === "reading") return `Processing a prompt of ${count(s.prompt_tokens, "token")}`;
    return `Generating, ${count(s.generated_tokens, "token")}; ${s.cached_tokens} of ${s.prompt_tokens} reused`;
  }

  #cells(host, runs) {
    const pages = runs.flatMap((run) => Array(run.n).fill(run.kind === "sealed" && run.shared ? "shared" : run.kind));
    const each = Math.ceil(pages.length / MOST_CELLS);
    host.replaceChildren();
    for (let i = 0; i < pages.length; i += each) make("i", host, `page ${pages[i]}`);
    if (each > 1) make("span", host, "hint", `${each} pages per cell`);
  }
}
