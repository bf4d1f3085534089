// Turns Markdown into elements. A model's text becomes text nodes only, never HTML, and unknown syntax is
// shown unchanged. Every text node goes through leaf(parent, text, first), where `first` is the text's
// position in the source. The caller can therefore mark parts of the text.
import { copyButton } from "./clipboard.js";

const DEEPEST = 12;  // the nesting depth of quotes, lists and emphasis

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const TABLE_RULE = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const LINK = /^(?:https?:\/\/|mailto:)/i;

function element(name, parent, className) {
  const made = document.createElement(name);
  if (className) made.className = className;
  parent.append(made);
  return made;
}

// Line is a line without its indentation and list or quote marks: characters [first, end) of the source.
class Line {
  constructor(source, first, end) {
    Object.assign(this, { source, first, end });
    this.text = source.slice(first, end);
  }
  from(n) { return new Line(this.source, Math.min(this.first + n, this.end), this.end); }
  get blank() { return this.text.trim() === ""; }
  get indent() { return this.text.length - this.text.trimStart().length; }
}

function linesOf(source) {
  const lines = [];
  for (let first = 0; first <= source.length;) {
    const found = source.indexOf("\n", first);
    const end = found < 0 ? source.length : found;
    lines.push(new Line(source, first, end));
    first = end + 1;
  }
  return lines;
}

const startsBlock = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(line.text));
const isTable = (lines, i) => lines[i].text.includes("|") && i + 1 < lines.length && lines[i + 1].text.includes("-") && TABLE_RULE.test(lines[i + 1].text);

// Returns the end of the block that begins at line i, and a function that makes the block's element.
function nextBlock(lines, i) {
  const line = lines[i];
  const until = (goesOn) => {
    let end = i + 1;
    while (end < lines.length && goesOn(lines[end], end)) ++end;
    return end;
  };
  const fence = FENCE.exec(line.text);
  if (fence) {
    const close = (l) => l.text.trim().startsWith(fence[1]) && l.text.trim().replaceAll(fence[1][0], "") === "";
    const end = until((l) => !close(l));
    return [Math.min(end + 1, lines.length), (parent, leaf) => codeBlock(parent, lines.slice(i + 1, end), fence[2], leaf)];
  }
  const heading = HEADING.exec(line.text);
  if (heading) return [i + 1, (parent, leaf) => inline(element(`h${Math.min(heading[1].length + 2, 6)}`, parent), [line.from(heading[0].length)], leaf)];
  if (RULE.test(line.text)) return [i + 1, (parent) => element("hr", parent)];
  if (QUOTE.test(line.text)) {
    const end = until((l) => QUOTE.test(l.text));
    const inner = lines.slice(i, end).map((l) => l.from(QUOTE.exec(l.text)[0].length));
    return [end, (parent, leaf, depth) => blocks(element("blockquote", parent), inner, leaf, depth)];
  }
  if (ITEM.test(line.text)) {
    const end = until((l, at) => (l.blank ? at + 1 < lines.length && (lines[at + 1].indent >= 2 || ITEM.test(lines[at + 1].text))
      : l.indent >= 2 || ITEM.test(l.text) || (!lines[at - 1].blank && !startsBlock(l))) && !RULE.test(l.text));
    return [end, (parent, leaf, depth) => list(parent, lines.slice(i, end), leaf, depth)];
  }
  if (isTable(lines, i)) {
    const end = until((l) => l.text.includes("|"));
    return [end, (parent, leaf) => table(parent, [line, ...lines.slice(i + 2, end)], leaf)];
  }
  const end = until((l, at) => !l.blank && !startsBlock(l) && !isTable(lines, at));
  return [end, (parent, leaf, depth) => inline(element("p", parent), lines.slice(i, end), leaf, depth)];
}

function blocks(parent, lines, leaf, depth) {
  if (depth > DEEPEST) return inline(element("p", parent), lines, leaf, depth);
  for (let i = 0; i < lines.length;) {
    if (lines[i].blank) { ++i; continue; }
    const [end, make] = nextBlock(lines, i);
    make(parent, leaf, depth + 1);
    i = end;
  }
}

function codeBlock(parent, lines, language, leaf) {
  const block = element("div", parent, "code");
  const head = element("div", block, "code-head");
  element("span", head).textContent = language;
  head.append(copyButton(() => lines.map((l) => l.text).join("\n")));
  const code = element("code", element("pre", block));
  lines.forEach((line, i) => {
    if (i > 0) code.append("\n");
    leaf(code, line.text, line.first);
  });
}

function list(parent, lines, leaf, depth) {
  const first = ITEM.exec(lines[0].text);
  const ordered = first[2].length > 1;
  const host = element(ordered ? "ol" : "ul", parent);
  if (ordered) host.start = parseInt(first[2], 10);
  let item = null, indent = 0;
  const finish = () => item && blocks(element("li", host), item, leaf, depth);
  for (const line of lines) {
    const mark = ITEM.exec(line.text);
    if (mark && (item === null || mark[1].length < indent)) {
      finish();
      item = [line.from(mark[0].length)];
      indent = Math.min(mark[0].length, mark[1].length + 2);
    } else {
      item.push(line.from(Math.min(line.indent, indent)));
    }
  }
  finish();
}

// Returns the cells of a table row as lines, without the bars between cells.
function cells(line) {
  const found = [];
  let first = line.text.startsWith("|") ? 1 : 0;
  for (let at = first; at <= line.text.length; ++at) {
    if (at < line.text.length && (line.text[at] !== "|" || line.text[at - 1] === "\\")) continue;
    const text = line.text.slice(first, at);
    const skipped = text.length - text.trimStart().length;
    if (at < line.text.length || text.trim()) found.push(new Line(line.source, line.first + first + skipped, line.first + first + skipped + text.trim().length));
    first = at + 1;
  }
  return found;
}

function table(parent, lines, leaf) {
  const host = element("table", element("div", parent, "scroll"));
  lines.forEach((line, i) => {
    const row = element("tr", host);
    for (const cell of cells(line)) inline(element(i === 0 ? "th" : "td", row), [cell], leaf);
  });
}


function inline(parent, lines, leaf, depth = 0) {
  const text = lines.map((l) => l.text).join("\n");
  const places = [];  // places[i] is the position of character i in the source
  for (const line of lines) for (let i = line.first; i <= line.end; ++i) places.push(i);
  new Inline(text, places, leaf).run(parent, 0, text.length, depth);
}

class Inline {
  constructor(text, places, leaf) {
    Object.assign(this, { text, places, leaf, hopeless: new Map() });
  }

  // Adds text nodes, each within one line of the source. Only the characters of one line are contiguous
  // there.
  put(parent, first, end) {
    while (first < end) {
      const found = this.text.indexOf("\n", first);
      const stop = found < 0 || found >= end ? end : found + 1;
      this.leaf(parent, this.text.slice(first, stop), this.places[first]);
      first = stop;
    }
  }

  run(parent, first, end, depth) {
    let plain = first;
    for (let at = first; at < end;) {
      const found = depth <= DEEPEST && this.special(at, end, depth);
      if (!found) { ++at; continue; }
      this.put(parent, plain, at);
      found.make(parent);
      plain = at = found.end;
    }
    this.put(parent, plain, end);
  }

  // Returns the position of the closing mark in [from, end), or -1. A failed search is remembered and not
  // repeated, so a text with many unclosed marks takes no longer than another.
  closing(mark, from, end) {
    const known = this.hopeless.get(mark);
    if (known !== undefined && from >= known[0] && end <= known[1]) return -1;
    for (let at = this.text.indexOf(mark, from + 1); at >= 0 && at + mark.length <= end; at = this.text.indexOf(mark, at + 1)) {
      const before = this.text[at - 1], after = this.text[at + mark.length] || " ";
      if (/\s/.test(before) || (mark[0] === "_" && /\w/.test(after))) continue;
      if (mark.length === 1 && after === mark) { ++at; continue; }
      return at;
    }
    this.hopeless.set(mark, [from, end]);
    return -1;
  }

  special(at, end, depth) {
    const c = this.text[at];
    if (c === "\\" && at + 1 < end && /[\\`*_{}[\]()#+\-.!|~>]/.test(this.text[at + 1]))
      return { end: at + 2, make: (parent) => this.put(parent, at + 1, at + 2) };
    if (c === "`") return this.code(at, end);
    if (c === "*" || c === "_" || c === "~") return this.emphasis(at, end, depth);
    if (c === "[") return this.link(at, end, depth);
    if (c === "h" && (at === 0 || !/\w/.test(this.text[at - 1]))) return this.address(at, end);
    return null;
  }

  code(at, end) {
    let n = 1;
    while (this.text[at + n] === "`") ++n;
    const mark = "`".repeat(n);
    const known = this.hopeless.get(mark);
    const close = known ? -1 : this.text.indexOf(mark, at + n);
    if (close < 0 || close >= end) {
      this.hopeless.set(mark, [0, end]);
      return { end: at + n, make: (parent) => this.put(parent, at, at + n) };
    }
    return { end: close + n, make: (parent) => this.put(element("code", parent), at + n, close) };
  }

  emphasis(at, end, depth) {
    const c = this.text[at];
    const double = this.text[at + 1] === c;
    if (c === "~" && !double) return null;
    if (c === "_" && at > 0 && /\w/.test(this.text[at - 1])) return null;
    const mark = double ? c + c : c;
    const first = at + mark.length;
    if (first >= end || /\s/.test(this.text[first])) return null;
    const close = this.closing(mark, first, end);
    if (close < 0) return null;
    const name = c === "~" ? "del" : double ? "strong" : "em";
    return { end: close + mark.length, make: (parent) => this.run(element(name, parent), first, close, depth + 1) };
  }

  link(at, end, depth) {
    const middle = this.hopeless.has("](") ? -1 : this.text.indexOf("](", at);
    if (middle < 0) this.hopeless.set("](", [at, end]);
    if (middle < 0 || middle >= end || middle - at > 500) return null;
    const close = this.text.indexOf(")", middle);
    const target = close < 0 || close >= end ? "" : this.text.slice(middle + 2, close);
    if (!LINK.test(target) || /\s/.test(target)) return null;
    return { end: close + 1, make: (parent) => this.run(anchor(parent, target), at + 1, middle, DEEPEST + depth) };
  }

  address(at, end) {
    const found = /^https?:\/\/[^\s<>"'`*()[\]]+/.exec(this.text.slice(at, Math.min(end, at + 2000)));
    if (!found) return null;
    const target = found[0].replace(/[.,;:!?]+$/, "");
    return { end: at + target.length, make: (parent) => this.put(anchor(parent, target), at, at + target.length) };
  }
}

function anchor(parent, target) {
  const link = element("a", parent);
  link.href = target;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return link;
}

// Makes `host` show the source. Unchanged blocks keep their elements, so a selection in an unchanged block
// stays.
export function render(host, source, leaf) {
  const lines = linesOf(source);
  const shown = host.shownBlocks || [];
  const blocksNow = [];
  for (let i = 0; i < lines.length;) {
    if (lines[i].blank) { ++i; continue; }
    const [end, make] = nextBlock(lines, i);
    const key = `${lines[i].first} ${source.slice(lines[i].first, lines[end - 1].end)}`;
    blocksNow.push({ key, make });
    i = end;
  }
  let same = 0;
  while (same < blocksNow.length && same < shown.length && shown[same].key === blocksNow[same].key && shown[same].leaf === leaf) ++same;
  for (const gone of shown.slice(same)) gone.node.remove();
  for (const block of blocksNow.slice(same)) {
    const holder = document.createDocumentFragment();
    block.make(holder, leaf, 1);
    block.node = holder.firstElementChild;
    host.append(holder);
  }
  host.shownBlocks = blocksNow.map((block, i) => (i < same ? shown[i] : { key: block.key, node: block.node, leaf }));
}
