// Finds the token at which two completions of one prompt diverge. Two recipes generate the completions with
// the same seed.
import { percent, quoted } from "./probabilities.js";

const same = (a, b) => a.bytes.length === b.bytes.length && a.bytes.every((byte, i) => byte === b.bytes[i]);

export class Parting {
  at = 0;         // the number of tokens that both completions have in common
  found = false;  // true once the completions differ at token `at`

  // `sides` holds the MarkedTokens of both completions, and `names` their recipes.
  constructor(sides, names) {
    this.sides = sides;
    this.names = names;
  }

  // Compares the new tokens. Call look() after either completion has grown. Returns whether the divergence
  // has been found.
  look() {
    const [a, b] = this.sides.map((side) => side.tokens);
    while (!this.found && this.at < a.length && this.at < b.length) {
      if (same(a[this.at], b[this.at])) ++this.at;
      else this.found = true;
      if (this.found) this.#mark();
    }
    return this.found;
  }

  // Call finish() after both completions have ended. If one completion is longer, the completions diverge
  // where the shorter one ends.
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
    return this.found ? `The same for ${n}, then different.` : `The same for all ${n}.`;
  }
}
