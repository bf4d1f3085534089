// Draws charts as SVG. Each function fills `host` at its present width. Elements of a row carry data-row, by
// which the page highlights a row, and data-tip, the text under the pointer.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.appendChild(element);
  return element;
}

function label(parent, x, y, text, attributes = {}) {
  svg("text", { x, y, ...attributes }, parent).textContent = text;
}

// Returns a number as text with at most three significant digits.
function readable(value) {
  if (value === null || value === undefined || !isFinite(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  return String(Number(value.toPrecision(3)));
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) ticks.push(Number(t.toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  if (high / low < 8) return linearTicks(low, high, 6).filter((t) => t > 0);
  const mantissas = Math.log10(high / low) < 2.5 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e)
    for (const m of mantissas) if (m * 10 ** e >= low * 0.999 && m * 10 ** e <= high * 1.001) ticks.push(m * 10 ** e);
  return ticks;
}

// Returns a map from values to pixels. `options.log` makes the scale logarithmic; otherwise
// `options.zero` makes the scale include zero. `options.ticks` gives the ticks as values.
function scale(values, from, to, options = {}) {
  let low = Math.min(...values), high = Math.max(...values);
  if (options.log) {
    if (low === high) { low /= 2; high *= 2; }
    const margin = (high / low) ** 0.05;
    [low, high] = options.tight ? [low, high] : [low / margin, high * margin];
  } else {
    if (options.zero) low = Math.min(low, 0);
    if (low === high) high = low + 1;
    const margin = options.tight ? 0 : (high - low) * 0.05;
    [low, high] = [options.zero ? low : low - margin, high + margin];
  }
  const position = options.log
    ? (v) => from + ((Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (to - from)
    : (v) => from + ((v - low) / (high - low)) * (to - from);
  const room = Math.abs(to - from);
  const ticks = options.ticks || (options.log ? logTicks(low, high) : linearTicks(low, high, room / 70));
  return { position, ticks, low, high };
}

const MARGIN = { left: 58, right: 14, top: 12, bottom: 42 };

// Draws a frame with axes. Returns the drawing and the maps of x and y to pixels.
function plane(host, height, xs, ys, axes) {
  host.replaceChildren();
  const width = Math.max(host.clientWidth, 240);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": axes.title }, host);
  const right = width - (axes.right || MARGIN.right), bottom = height - MARGIN.bottom;
  const x = scale(xs, axes.x.reverse ? right : MARGIN.left, axes.x.reverse ? MARGIN.left : right, axes.x);
  const y = scale(ys, bottom, MARGIN.top, axes.y);
  for (const tick of y.ticks) {
    svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y.position(tick), y2: y.position(tick) }, drawing);
    label(drawing, MARGIN.left - 6, y.position(tick) + 4, (axes.y.format || readable)(tick), { "text-anchor": "end" });
  }
  let last = -Infinity;
  for (const tick of axes.x.reverse ? [...x.ticks].reverse() : x.ticks) {
    const at = x.position(tick);
    svg("line", { class: "grid", x1: at, x2: at, y1: bottom, y2: bottom + 4 }, drawing);
    if (at - last < 44) continue;
    label(drawing, at, bottom + 17, (axes.x.format || readable)(tick), { "text-anchor": "middle" });
    last = at;
  }
  label(drawing, (MARGIN.left + right) / 2, height - 6, axes.x.name, { "text-anchor": "middle" });
  label(drawing, 0, 0, axes.y.name,
        { "text-anchor": "middle", transform: `translate(12 ${(MARGIN.top + bottom) / 2}) rotate(-90)` });
  return { drawing, x: x.position, y: y.position, width, right };
}

// Draws a mark whose shape depends on the row, because colours alone do not tell rows apart for everybody.
function mark(parent, style, x, y, r) {
  const shapes = {
    circle: () => svg("circle", { cx: x, cy: y, r }, parent),
    square: () => svg("rect", { x: x - r * .9, y: y - r * .9, width: 1.8 * r, height: 1.8 * r }, parent),
    diamond: () => svg("path", { d: `M${x} ${y - 1.25 * r}L${x + 1.25 * r} ${y}L${x} ${y + 1.25 * r}L${x - 1.25 * r} ${y}Z` }, parent),
    triangle: () => svg("path", { d: `M${x} ${y - 1.2 * r}L${x + 1.15 * r} ${y + r}L${x - 1.15 * r} ${y + r}Z` }, parent),
  };
  const shape = shapes[style.shape]();
  shape.style.fill = style.color;
  return shape;
}

// Writes the names of lines next to their last points. Names move up or down until none covers another.
function nameLines(series, frame, height) {
  const line = 12.5, ends = series.filter((s) => s.points.length > 0)
    .map((s) => ({ s, y: frame.y(s.points[s.points.length - 1][1]) })).sort((a, b) => a.y - b.y);
  for (let i = 1; i < ends.length; ++i) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + line);
  let maximum = height - MARGIN.bottom + 6;
  for (let i = ends.length - 1; i >= 0; --i, maximum -= line) ends[i].y = Math.min(ends[i].y, maximum);
  for (const { s, y } of ends) {
    const group = svg("g", { "data-row": s.row }, frame.drawing);
    label(group, frame.right + 8, y + 4, s.name, { style: `fill:${s.style.color};font-size:11px` });
  }
}

// `series` is [{ row, name, style, points: [[x, y, tip]] }].
function lineChart(host, series, axes, height = 300) {
  const points = series.flatMap((s) => s.points);
  if (points.length === 0) return nothing(host);
  const right = host.clientWidth > 420 ? 14 + 6.1 * Math.max(...series.map((s) => s.name.length)) : MARGIN.right;
  const named = host.clientWidth > 420 && right < host.clientWidth * 0.4;
  const frame = plane(host, height, points.map((p) => p[0]), points.map((p) => p[1]),
                      { ...axes, right: named ? right : MARGIN.right });
  if (named) nameLines(series, frame, height);
  for (const s of series) {
    const group = svg("g", { "data-row": s.row }, frame.drawing);
    const path = s.points.map((p, i) => `${i ? "L" : "M"}${frame.x(p[0]).toFixed(1)} ${frame.y(p[1]).toFixed(1)}`);
    const line = svg("path", { class: "line", d: path.join(""), "stroke-dasharray": s.style.dash }, group);
    line.style.stroke = s.style.color;
    for (const p of s.points) {
      mark(group, s.style, frame.x(p[0]), frame.y(p[1]), 2.6);
      svg("circle", { class: "hit", cx: frame.x(p[0]), cy: frame.y(p[1]), r: 9, "data-tip": p[2] }, group);
    }
  }
}

// `points` is [{ row, style, x, y, lo, hi, r, name, tip }]. The line `front`, [[x, y]], lies behind the
// points.
function scatterChart(host, points, front, axes, height = 420) {
  if (points.length === 0) return nothing(host);
  const ys = points.flatMap((p) => [p.lo, p.hi, p.y]).filter((v) => v > 0);
  const frame = plane(host, height, points.map((p) => p.x), ys, axes);
  const line = front.map(([x, y], i) => `${i ? "L" : "M"}${frame.x(x)} ${frame.y(y)}`).join("");
  if (line) svg("path", { class: "front", d: line }, frame.drawing);
  const taken = [];
  for (const p of points) taken.push({ x: frame.x(p.x) - p.r, y: frame.y(p.y) - p.r, w: 2 * p.r, h: 2 * p.r });
  for (const p of points) {
    const group = svg("g", { "data-row": p.row }, frame.drawing);
    const x = frame.x(p.x), y = frame.y(p.y);
    if (p.lo > 0) {
      const bar = svg("line", { x1: x, x2: x, y1: frame.y(p.lo), y2: frame.y(p.hi), "stroke-width": 1.5 }, group);
      bar.style.stroke = p.style.color;
    }
    mark(group, p.style, x, y, p.r).setAttribute("data-tip", p.tip);
    placeName(group, p, x, y, frame.width, taken);
  }
}

// Places a name next to its point if a place there is free. A name that would cover another name is left out.
function placeName(group, point, x, y, width, taken) {
  const w = point.name.length * 6.6, h = 13;
  const spots = [[x + point.r + 4, y + 4], [x - point.r - 4 - w, y + 4], [x - w / 2, y - point.r - 5],
                 [x - w / 2, y + point.r + 14], [x + point.r + 2, y - point.r - 2], [x + point.r + 2, y + point.r + 10]];
  for (const [left, base] of spots) {
    const box = { x: left, y: base - h + 2, w, h };
    const free = left > MARGIN.left && left + w < width && taken.every((t) =>
      box.x + box.w < t.x || t.x + t.w < box.x || box.y + box.h < t.y || t.y + t.h < box.y);
    if (!free) continue;
    taken.push(box);
    label(group, left, base, point.name, { class: "label" });
    return;
  }
}

// `bars` is [{ row, style, name, value, lo, hi, dots, tip, text }]. The axis goes from zero to the largest value.
function barChart(host, bars, axes) {
  if (bars.length === 0) return nothing(host);
  host.replaceChildren();
  const width = Math.max(host.clientWidth, 240), rowHeight = 26;
  const left = Math.min(Math.max(...bars.map((b) => b.name.length)) * 6.8 + 10, width * 0.42);
  const height = bars.length * rowHeight + 38;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": axes.title }, host);
  const x = scale([0, ...bars.flatMap((b) => [b.value, b.hi || 0, ...(b.dots || [])])], left, width - 52, { zero: true });
  for (const tick of x.ticks) {
    svg("line", { class: "grid", x1: x.position(tick), x2: x.position(tick), y1: 0, y2: height - 34 }, drawing);
    label(drawing, x.position(tick), height - 20, readable(tick), { "text-anchor": "middle" });
  }
  label(drawing, (left + width - 52) / 2, height - 4, axes.x.name, { "text-anchor": "middle" });
  bars.forEach((b, i) => {
    const group = svg("g", { "data-row": b.row, "data-tip": b.tip }, drawing);
    const y = i * rowHeight + 4, end = x.position(b.value);
    label(group, left - 8, y + 14, b.name, { "text-anchor": "end", class: "label" });
    const bar = svg("rect", { x: left, y, width: Math.max(end - left, 1), height: rowHeight - 8, rx: 2, opacity: .8 }, group);
    bar.style.fill = b.style.color;
    if (b.hi) {
      const whisker = svg("line", { x1: x.position(b.lo), x2: x.position(b.hi), y1: y + 9, y2: y + 9, "stroke-width": 2 }, group);
      whisker.style.stroke = "var(--ink)";
    }
    for (const dot of b.dots || []) svg("circle", { cx: x.position(dot), cy: y + 9, r: 2, opacity: .5 }, group).style.fill = "var(--ink)";
    label(group, width, y + 14, b.text, { "text-anchor": "end" });
  });
}

// Returns the colour of a value between `low` and `high` on a logarithmic scale.
function heatColor(value, low, high) {
  if (!(value > 0)) return "var(--heat-low)";
  const share = Math.min(Math.max(Math.log(value / low) / Math.log(high / low), 0), 1);
  const [from, to, part] = share < 0.5 ? ["low", "middle", 2 * share] : ["middle", "high", 2 * share - 1];
  return `color-mix(in oklab, var(--heat-${to}) ${(100 * part).toFixed(1)}%, var(--heat-${from}))`;
}

// The colour of a cell is cells[layer][head]; tip(layer, head) returns the text under the pointer.
function heatMap(host, cells, low, high, tip) {
  host.replaceChildren();
  const columns = cells[0].length, side = 8, left = 22, gap = 16;
  const width = left + columns * 14, height = gap + cells.length * side;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "layers and heads" }, host);
  const tiny = { "font-size": 7, style: "font-size:7px", "text-anchor": "middle" };
  for (let head = 0; head < columns; head += Math.ceil(columns / 9)) label(drawing, left + head * 14 + 7, 11, head, tiny);
  cells.forEach((heads, layer) => {
    if (layer % 5 === 0) label(drawing, left - 8, gap + layer * side + 7, layer, tiny);
    heads.forEach((value, head) => {
      const cell = svg("rect", { x: left + head * 14, y: gap + layer * side, width: 13.4, height: side - .6,
                                 "data-tip": tip(layer, head) }, drawing);
      cell.style.fill = heatColor(value, low, high);
    });
  });
}

function nothing(host) {
  host.replaceChildren();
  const text = document.createElement("p");
  text.className = "hint";
  text.textContent = "Nothing to show: all recipes are hidden.";
  host.appendChild(text);
}
