// Finds the parts of a completion to which the model gave a low probability, and the tokens where an
// unquantized cache would have continued differently.

const LIMITS = [[0.05, "p5"], [0.2, "p20"], [0.5, "p50"]];

export const percent = (logprob) => {
  const p = 100 * Math.exp(logprob);
  return `${p >= 10 ? p.toFixed(0) : p >= 0.1 ? p.toFixed(1) : "< 0.1"} %`;
};
export const quoted = (token) => JSON.stringify(token).replaceAll("�", "…");

// MarkedTokens follows the tokens of a completion. `marks` holds [first, end, class, tip] of the marked ones,
// in characters of the text. A character that spans several tokens belongs to the last of those tokens.
export class MarkedTokens {
  marks = [];
  tokens = [];  // { token, bytes, logprob, first, end } of every token
  #decoder = new TextDecoder();
  #at = 0;

  // `wanted` is { probabilities, guard } and says which marks to make.
  constructor(wanted) {
    this.wanted = wanted;
  }

  add(tokens) {
    for (const token of tokens) {
      const text = this.#decoder.decode(Uint8Array.from(token.bytes), { stream: true });
      const mark = text && this.#mark(token);
      if (mark) this.marks.push([this.#at, this.#at + text.length, ...mark]);
      this.tokens.push({ token: token.token, bytes: token.bytes, logprob: token.logprob, first: this.#at, end: this.#at + text.length });
      this.#at += text.length;
    }
  }

  // Marks token i, and removes earlier marks of the token.
  markToken(i, kind, tip) {
    const { first, end } = this.tokens[i];
    const others = this.marks.filter((mark) => mark[1] <= first || mark[0] >= end);
    this.marks.splice(0, this.marks.length, ...[...others, [first, Math.max(end, first + 1), kind, tip]].sort((a, b) => a[0] - b[0]));
  }

  #mark(token) {
    const { guard } = token;
    if (guard && guard.token !== token.token)
      return ["other", `${quoted(token.token)} ${percent(token.logprob)}; without quantization: ${quoted(guard.token)} (KL divergence ${guard.kld.toPrecision(2)})`];
    const limit = this.wanted.probabilities && LIMITS.find(([p]) => Math.exp(token.logprob) < p);
    return limit && [limit[1], MarkedTokens.#tip(token)];
  }

  static #tip(token) {
    const rivals = token.top_logprobs.filter((t) => t.token !== token.token).map((t) => `${quoted(t.token)} ${percent(t.logprob)}`);
    return `${quoted(token.token)} ${percent(token.logprob)}${rivals.length ? `; likelier: ${rivals.join(", ")}` : ""}`;
  }
}

// Returns the function that puts text into the page (`leaf` in markdown.js). Marked parts of the text get
// elements of their own.
export function markedLeaf(marks) {
  return (parent, text, first) => {
    const end = first + text.length;
    let at = first;
    for (const [from, to, kind, tip] of marks) {
      if (to <= at || from >= end) continue;
      parent.append(text.slice(at - first, Math.max(from, at) - first));
      const mark = document.createElement("span");
      mark.className = kind;
      mark.title = tip;
      mark.textContent = text.slice(Math.max(from, at) - first, Math.min(to, end) - first);
      parent.append(mark);
      at = Math.min(to, end);
    }
    parent.append(text.slice(at - first));
  };
}

export function plainLeaf(parent, text) {
  parent.append(text);
}
