// Lays out the report's page. Every section draws figures of a kvant.report/2 document with the charts of
// charts.js.
"use strict";

const figures = JSON.parse(document.getElementById("figures").textContent);
const reference = figures.quality.results[0].recipe;
const hidden = new Set();

function byRecipe(results, pick) {
  return new Map(results.map((result) => [result.recipe, pick(result)]));
}

// Each cache has one row, in the order of the command line, with all figures that were measured for the
// cache.
const greedy = byRecipe(figures.greedy.results, (r) => r);
const speed = byRecipe(figures.speed.results, (r) => r);
const memory = byRecipe(figures.memory.results, (r) => r.bytes);
const longest = figures.layers.at(-1);
const layers = byRecipe(longest?.results ?? [], (r) => r);
const SHAPES = ["circle", "square", "diamond", "triangle"];
const DASHES = ["none", "6 3", "2 3", "9 3 2 3"];
const rows = figures.quality.results.map((quality, i) => ({
  name: quality.recipe,
  quality,
  greedy: greedy.get(quality.recipe),
  speed: speed.get(quality.recipe),
  memory: memory.get(quality.recipe),
  layers: layers.get(quality.recipe),
  style: { color: `var(--c${i % 10})`, shape: SHAPES[i % SHAPES.length], dash: DASHES[Math.floor(i / 10) % DASHES.length] },
}));
const shown = () => rows.filter((row) => !hidden.has(row.name));
const measured = () => shown().filter((row) => row.name !== reference);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const mebibytes = (bytes) => bytes / 2 ** 20;
// Returns the bytes at the scored context, from the bits per element in proportion to the 16 bits of bf16.
const bytesNow = (row) => (row.quality.bits_all / 16) * bf16Bytes(figures.quality.context);

function bf16Bytes(context) {
  const contexts = figures.memory.contexts, bytes = memory.get(reference);
  return (bytes[bytes.length - 1] / contexts[contexts.length - 1]) * context;
}

// --- Sections -------------------------------------------------------------------------------------------

// All drawers run again when the width or the choice of recipes changes.
const drawers = [];

function section(id, title, hint, command, wide = false) {
  const box = element("section", { id, class: wide ? "wide" : "" }, element("h2", {}, title), element("p", { class: "hint" }, hint));
  document.getElementById("sections").append(box);
  const host = element("div");
  box.append(host);
  if (command) box.append(element("details", { class: "command" }, element("summary", {}, "How this was measured"), element("code", {}, command)));
  return host;
}

function chart(host, draw) {
  drawers.push(() => draw(host));
}

function drawAll() {
  for (const draw of drawers) draw();
}

const COLUMNS = [
  ["bits", (r) => r.quality.bits_all, (r) => r.quality.bits_all.toFixed(2)],
  ["mean KLD", (r) => r.quality.kld_mean, (r) => readable(r.quality.kld_mean)],
  ["95 % interval", (r) => r.quality.kld_lo, (r) => `${readable(r.quality.kld_lo)} – ${readable(r.quality.kld_hi)}`],
  ["99.9 % KLD", (r) => r.quality.kld_p999, (r) => readable(r.quality.kld_p999)],
  ["top-1", (r) => r.quality.top1, (r) => percent(r.quality.top1, 2)],
  ["perplexity", (r) => r.quality.ppl, (r) => r.quality.ppl.toFixed(3)],
  ["greedy tokens", (r) => r.greedy.agreed_mean, (r) => r.greedy.agreed_mean.toFixed(1)],
  ["decode tok/s", (r) => r.speed.decode_tps, (r) => readable(r.speed.decode_tps)],
  ["prefill tok/s", (r) => r.speed.prompt_tps, (r) => readable(r.speed.prompt_tps)],
];

function summaryTable() {
  const host = section("summary", "All recipes",
    `KL divergence (KLD) of the next-token distribution from ${reference}'s, in nats. Bits are per value of K and V, all parameters included. Click a heading to sort.`,
    figures.commands.report, true);
  let sorted = 0, rising = false;
  chart(host, () => {
    const order = [...shown()].sort((a, b) => (COLUMNS[sorted][1](a) - COLUMNS[sorted][1](b)) * (rising ? 1 : -1));
    const heads = COLUMNS.map(([name], i) => {
      const direction = i !== sorted ? "none" : rising ? "ascending" : "descending";
      const cell = element("th", { scope: "col", tabindex: 0, "aria-sort": direction }, name);
      const sort = () => { rising = i === sorted ? !rising : true; sorted = i; drawAll(); };
      cell.addEventListener("click", sort);
      cell.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
      return cell;
    });
    const body = order.map((row) => element("tr", { "data-row": row.name },
      element("td", {}, swatch(row), " ", row.name), ...COLUMNS.map(([, , text]) => element("td", {}, text(row)))));
    host.replaceChildren(element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "recipe"), ...heads)), element("tbody", {}, ...body))));
  });
}

function swatch(row) {
  return element("span", { class: "swatch", style: `background:${row.style.color}` });
}

// Returns the recipes that no other recipe beats in both size and divergence.
function paretoFront(points) {
  const front = [];
  for (const p of [...points].sort((a, b) => a.x - b.x || a.y - b.y))
    if (front.length === 0 || p.y < front[front.length - 1][1]) front.push([p.x, p.y]);
  return front;
}

function tradeOff() {
  const host = section("tradeoff", "Size, quality and speed",
    `Lower left is better; larger marks decode faster. Dashed line: recipes that no other beats in both size and quality. Bars: 95 % intervals. ${reference} is the reference and is not shown.`,
    figures.commands.quality, true);
  chart(host, () => {
    const fastest = Math.max(...rows.map((row) => row.speed.decode_tps));
    const points = measured().filter((row) => row.quality.kld_mean > 0).map((row) => ({
      row: row.name, name: row.name, style: row.style, x: mebibytes(bytesNow(row)), y: row.quality.kld_mean,
      lo: row.quality.kld_lo, hi: row.quality.kld_hi, r: 4 + 8 * Math.sqrt(row.speed.decode_tps / fastest),
      tip: `${row.name}\n${readable(mebibytes(bytesNow(row)))} MiB, ${row.quality.bits_all.toFixed(2)} bits\nmean KLD ${readable(row.quality.kld_mean)}\n${readable(row.speed.decode_tps)} tokens/s`,
    }));
    scatterChart(host, points, paretoFront(points), {
      title: "Cache size against divergence",
      x: { name: `MiB of cache at ${figures.quality.context} tokens`, log: true },
      y: { name: "mean KLD (nats)", log: true },
    });
  });
}

function tail() {
  const host = section("tail", "Rare, large errors",
    "Share of positions (horizontal axis) with at least this divergence (vertical axis). A recipe with a good mean can have a large error once in a thousand tokens.",
    figures.commands.quality);
  chart(host, () => lineChart(host, measured().map((row) => ({
    row: row.name, name: row.name, style: row.style,
    points: row.quality.tail.share.map((share, i) => [share, row.quality.tail.kld[i],
      `${row.name}\n${readable(100 * share)} % of positions: KLD ≥ ${readable(row.quality.tail.kld[i])}`])
      .filter(([share, kld]) => kld > 1e-7 && share < 0.7),
  })), {
    title: "Tail of the divergence",
    x: { name: "share of positions", log: true, reverse: true, format: (v) => `${readable(100 * v)} %` },
    y: { name: "KLD at least (nats)", log: true },
  }));
}

function drift(id, title, hint, value, axis, tip) {
  const host = section(id, title, hint, figures.commands.quality);
  chart(host, () => lineChart(host, measured().map((row) => ({
    row: row.name, name: row.name, style: row.style,
    points: row.quality.drift.map((bin) => [bin.first + bin.count / 2, value(bin),
      `${row.name}\ntokens ${bin.first} – ${bin.first + bin.count - 1}: ${tip(bin)}`]).filter(([, v]) => v > 0),
  })), { title, x: { name: "position in the context", tight: true, format: String }, y: axis }));
}

// Each entry becomes one sentence about each cache: what the cache loses of the reference's right answers as
// the context grows.
const LIMITS = [["needles", "hidden facts"], ["json", "valid JSON"], ["records", `same JSON as ${reference}`], ["answer", "long completion"]];

function limits() {
  const { contexts, results } = figures.limits;
  if (contexts.length === 0) return;
  const host = section("limits", "Limits by context",
    `Documents of ${contexts.join(", ")} tokens contain hidden numbers, and an order and a tool call in JSON. The table shows how much of ${reference}'s correct results each cache keeps. A cache breaks where it loses more than a tenth. Long completions diverge sooner, where two tokens have nearly the same probability.`,
    figures.commands.limits, true);
  chart(host, () => {
    const body = results.filter((r) => r.recipe !== reference && !hidden.has(r.recipe)).map((result) =>
      element("tr", { "data-row": result.recipe }, element("td", {}, swatch(rows.find((row) => row.name === result.recipe)), " ", result.recipe),
        ...LIMITS.map(([kind]) => element("td", { class: "wrap", "data-tip": limitCounts(result, kind) }, result.limits[kind].says))));
    host.replaceChildren(element("div", { class: "scroll" }, element("table", { class: "limits" },
      element("thead", {}, element("tr", {}, ...["recipe", ...LIMITS.map(([, name]) => name)].map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...body))));
  });
}

const limitCounts = (result, kind) => [result.recipe, ...result.cells.map((cell) =>
  `${cell.context} tokens: ${cell[kind].own} of ${cell[kind].asked}, ${reference} ${cell[kind].reference}`)].join("\n");

function generations() {
  const lengths = figures.greedy.lengths;
  const host = section("greedy", "Greedy generations",
    `Tokens until a generation first differs from ${reference}'s, over ${lengths.length} prompts with generations of at most ${figures.greedy.generated_tokens}. Bars: means; lines: 95 % intervals; dots: prompts.`,
    figures.commands.greedy);
  chart(host, () => barChart(host, measured().map((row) => ({
    row: row.name, style: row.style, name: row.name, value: row.greedy.agreed_mean, lo: row.greedy.agreed_lo,
    hi: row.greedy.agreed_hi, dots: row.greedy.agreed, text: percent(row.greedy.identical, 0),
    tip: `${row.name}\n${row.greedy.agreed_mean.toFixed(1)} tokens on average, median ${row.greedy.agreed_median}\n${percent(row.greedy.identical, 0)} of the generations are the same`,
  })), { title: "Greedy agreement", x: { name: "tokens in common; right: share of identical generations" } }));
}

function speeds() {
  const setting = figures.speed;
  const host = section("speed", "Speed",
    `Decode speed at ${figures.quality.context} tokens, ${setting.threads} threads, medians of ${setting.repeats} interleaved runs. Right: relative to ${reference}.`,
    figures.commands.speed);
  const base = speed.get(reference).decode_tps;
  chart(host, () => barChart(host, shown().filter((row) => row.speed.decode_tps).map((row) => ({
    row: row.name, style: row.style, name: row.name, value: row.speed.decode_tps,
    text: `${(row.speed.decode_tps / base).toFixed(2)}x`,
    tip: `${row.name}\ndecode ${readable(row.speed.decode_tps)} tokens/s\nprefill ${readable(row.speed.prompt_tps)} tokens/s`,
  })), { title: "Speed", x: { name: "tokens/s" } }));
}

function memoryByContext() {
  const host = section("memory", "Memory by context",
    "Size of one sequence's cache, including the unsealed tokens, the window and the sink.",
    figures.commands.report);
  chart(host, () => lineChart(host, shown().filter((row) => row.memory).map((row) => ({
    row: row.name, name: row.name, style: row.style,
    points: figures.memory.contexts.map((context, i) => [context, mebibytes(row.memory[i]),
      `${row.name}\n${context} tokens: ${readable(mebibytes(row.memory[i]))} MiB`]),
  })), {
    title: "Memory by context",
    x: { name: "tokens", log: true, tight: true, ticks: figures.memory.contexts, format: String },
    y: { name: "MiB", log: true },
  }));
}

function heatMaps() {
  if (!longest) return;
  const host = section("heat", "Error of attention by layer and head",
    `Mean squared error of each query head's attention output (columns: heads, rows: layers), with ${longest.reference}'s Q, K and V for every cache. All maps share one logarithmic scale.`,
    figures.commands.layers, true);
  const errors = longest.results.flatMap((r) => r.layers.flatMap((l) => l.heads.map((h) => h.mse))).filter((v) => v > 0);
  if (errors.length === 0) return;
  const sorted = errors.sort((a, b) => a - b);
  const low = sorted[Math.floor(sorted.length * 0.01)], high = sorted[Math.floor(sorted.length * 0.999)];
  chart(host, () => {
    const maps = element("div", { class: "maps" });
    host.replaceChildren(element("div", { class: "bar-legend" }, readable(low), element("span", { class: "ramp" }), readable(high)), maps);
    for (const row of measured().filter((r) => r.layers)) {
      const map = element("div");
      const total = `MSE ${readable(row.layers.mse)}, relative ${readable(row.layers.relative)}`;
      maps.append(element("div", { "data-row": row.name }, element("h3", { title: total }, swatch(row), " ", row.name), map));
      heatMap(map, row.layers.layers.map((l) => l.heads.map((h) => h.mse)), low, high, (layer, head) =>
        `${row.name}\nlayer ${layer}, head ${head}\nMSE ${readable(row.layers.layers[layer].heads[head].mse)}, relative ${readable(row.layers.layers[layer].heads[head].relative)}`);
    }
  });
}

function skipRates() {
  const skipping = figures.layers.flatMap((document) => document.results
    .filter((result) => "skip_rate" in result.layers[0]).map((result) => ({ result, context: document.context })));
  if (skipping.length === 0) return;
  const host = section("skip", "Skipped V",
    "Share of (query, token) pairs whose V is skipped because its softmax weight is too small, by layer and context.",
    figures.commands.layers);
  const contexts = [...new Set(skipping.map((s) => s.context))];
  chart(host, () => lineChart(host, skipping.filter((s) => !hidden.has(s.result.recipe)).map(({ result, context }) => {
    const row = rows.find((r) => r.name === result.recipe);
    return {
      row: row.name, name: `${row.name}, ${context}`, style: { ...row.style, dash: DASHES[contexts.length - 1 - contexts.indexOf(context)] },
      points: result.layers.map((l, layer) => [layer, 100 * l.skip_rate,
        `${row.name}\nlayer ${layer}, ${context} tokens: ${percent(l.skip_rate)} skipped\nsoftmax weight lost: ${readable(l.skipped_mass)}`]),
    };
  }), { title: "Skip rate by layer", x: { name: `layer; contexts ${[...contexts].reverse().join(" (solid), ")}${contexts.length > 1 ? " (dotted)" : ""}` }, y: { name: "skipped %", zero: true } }));
}

function plans() {
  const host = section("plans", "Plans", "How each recipe is applied to this model: formats, kernels and fallbacks.", figures.commands.report, true);
  for (const row of rows) {
    const plan = row.quality.plan;
    const table = element("table", { class: "plan" },
      element("thead", {}, element("tr", {}, ...["side", "layers", "KV heads", "transforms", "format", "kernel", "page bytes"].map((h) => element("th", {}, h)))),
      element("tbody", {}, ...plan.rows.map((r) => element("tr", {}, ...[r.side, r.layers, r.kv_heads, r.transforms || "-", r.format, r.kernel, r.page_bytes]
        .map((cell, i) => element("td", { class: i === 1 || i === 3 ? "wrap" : "" }, String(cell)))))));
    const fallbacks = plan.fallbacks.map((f) => element("p", { class: "hint" }, `Fallback: ${f.what} (${f.reason})`));
    const about = element("p", { class: "hint" }, `${plan.recipe}; tail ${plan.tail || "-"}, sink ${plan.sink}, window ${plan.window}`);
    host.append(element("details", { "data-row": row.name }, element("summary", {}, swatch(row), " ", row.name, fallbacks.length ? ` (${fallbacks.length} fallbacks)` : ""),
      about, element("div", { class: "scroll" }, table), ...fallbacks));
  }
}

// --- Page -----------------------------------------------------------------------------------------------

function focusOn(name) {
  for (const part of document.querySelectorAll("[data-row]")) part.classList.toggle("in-focus", part.dataset.row === name);
  if (name) document.body.dataset.focus = name; else delete document.body.dataset.focus;
}

function picker() {
  for (const row of rows) {
    const button = element("button", { type: "button", "aria-pressed": "true" }, swatch(row), row.name);
    button.addEventListener("click", () => {
      if (!hidden.delete(row.name)) hidden.add(row.name);
      button.setAttribute("aria-pressed", String(!hidden.has(row.name)));
      drawAll();
    });
    button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") focusOn(row.name); });
    button.addEventListener("pointerleave", () => focusOn(""));
    document.getElementById("picker").append(button);
  }
}

function tips() {
  const tip = document.getElementById("tip");
  const show = (event) => {
    const target = event.target.closest("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8))}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
}

function theme() {
  document.getElementById("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
}

function subject() {
  const q = figures.quality;
  document.title = `kvant report: ${figures.description}`;
  document.getElementById("subject").textContent =
    `${figures.description} (${figures.model}) on ${figures.text}: ${q.chunks} ${q.chunks === 1 ? "chunk" : "chunks"} of ${q.context} tokens, ` +
    `${q.results[0].positions} scored positions, compared with ${reference}. ${figures.date}, ${figures.threads} threads.`;
  document.getElementById("footer").textContent =
    "Quality is measured with weights dequantized to F32, so only the cache is quantized; speed is measured with the weights as stored. " +
    "The order of the recipes holds for this model and this text. This file contains everything, including its figures as JSON.";
}

subject();
picker();
summaryTable();
tradeOff();
tail();
drift("drift", "Drift along the context", "Mean divergence by position. If errors accumulated along the context, the curve would rise.",
  (bin) => bin.kld, { name: "mean KLD (nats)", log: true }, (bin) => `KLD ${readable(bin.kld)}`);
drift("agreement", "Agreement along the context", `Share of positions whose most likely token is ${reference}'s, by position.`,
  (bin) => 100 * bin.top1, { name: "top-1 agreement %" }, (bin) => `top-1 ${percent(bin.top1)}`);
memoryByContext();
limits();
generations();
speeds();
heatMaps();
skipRates();
plans();
tips();
theme();
drawAll();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  drawAll();
});
document.body.dataset.ready = "true";
