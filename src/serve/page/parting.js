// Finds where two completions of one prompt diverge, which caches by two recipes generate with the same draws.
import { percent, quoted } from "./probabilities.js";

const same = (a, b) => a.bytes.length === b.bytes.length && a.bytes.every((byte, i) => byte === b.bytes[i]);

export class Parting {
  at = 0;         // number of tokens that both have in common
  found = false;  // they differ from there on

  // sides: the MarkedTokens of both; names: their recipes.
  constructor(sides, names) {
    this.sides = sides;
    this.names = names;
  }

  // Call it after more tokens of either. Returns whether the place was found in this call.
  look() {
    const [a, b] = this.sides.map((side) => side.tokens);
    while (!this.found && this.at < a.length && this.at < b.length) {
      if (same(a[this.at], b[this.at])) ++this.at;
      else this.found = true;
      if (this.found) this.#mark();
    }
    return this.found;
  }

  // Call it after the end of both.
  finish() {
    this.found ||= this.sides.some((side) => side.tokens.length > this.at);
  }

  #mark() {
    const said = this.sides.map((side) => side.tokens[this.at]);
    for (const [i, side] of this.sides.entries()) {
      const other = 1 - i;
      side.markToken(this.at, "parts", `${quoted(said[i].token)} ${percent(said[i].logprob)}; with ${this.names[other]}: ${quoted(said[other].token)} ${percent(said[other].logprob)}`);
    }
  }

  get text() {
    const n = `${this.at.toLocaleString("en")} token${this.at === 1 ? "" : "s"}`;
    return this.found ? `Alike for ${n}, then each its own.` : `Alike in all ${n}.`;
  }
}
