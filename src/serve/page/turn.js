// Shows one turn of a conversation.
import { copyButton } from "./clipboard.js";
import { render } from "./markdown.js";
import { markedLeaf, plainLeaf } from "./probabilities.js";
import { reachByKeyboard } from "./tips.js";

const seconds = (s) => (s < 10 ? s.toFixed(1) : s.toFixed(0));

// Returns the line of figures below a completion. `answer` is a turn, or the second completion that is shown
// next to the turn.
function figures(answer) {
  const parts = [];
  if (answer.usage) {
    const { completion_tokens: made, prompt_tokens: prompt, prompt_tokens_details: details } = answer.usage;
    parts.push(`${made} ${made === 1 ? "token" : "tokens"} in ${seconds(answer.seconds)} s`);
    if (answer.answering > 0 && made > 1) parts.push(`${((made - 1) / answer.answering).toFixed(1)} tokens/s`);
    parts.push(`${details.cached_tokens} of ${prompt} prompt tokens reused`);
    const { guard } = answer.usage;
    if (guard) parts.push(`${guard.differing} of ${guard.tokens} tokens differ from an unquantized cache, mean KL divergence ${guard.mean_kld.toPrecision(2)}`);
  }
  if (answer.end === "length") parts.push("stopped at the token limit");
  if (answer.end === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

function line(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  if (className === "error") element.setAttribute("role", "alert");
  return element;
}

// AnswerText shows the text of a completion. Once two completions diverge, the text is drawn again with a
// mark at the divergence.
class AnswerText {
  constructor(answer) {
    this.answer = answer;
    this.node = document.createElement("div");
    this.node.className = "body";
    this.#choose(false);
  }

  #choose(parts) {
    this.parts = parts;
    this.leaf = this.answer.marks ? markedLeaf(this.answer.marks) : plainLeaf;
  }

  update(parts) {
    if (parts !== this.parts) this.#choose(parts);
    render(this.node, this.answer.text, this.leaf);
  }
}

export class TurnView {
  // `actions` is { edit(turn, text), again(turn), pick(turn) }. `branches` are the alternatives to this turn.
  constructor(turn, branches, actions) {
    this.turn = turn;
    this.actions = actions;
    this.node = document.createElement("article");
    this.node.className = `turn ${turn.role}`;
    this.texts = (turn.other ? [turn, turn.other] : [turn]).map((answer) => new AnswerText(answer));
    this.body = this.texts[0].node;
    this.foot = document.createElement("div");
    this.foot.className = "foot";
    this.node.append(turn.other ? this.#pair() : this.body, this.foot);
    this.branches = branches;
    this.update(false);
  }

  // Shows both completions side by side, each below its recipe.
  #pair() {
    const pair = document.createElement("div");
    pair.className = "pair";
    this.halves = this.texts.map((text) => {
      const half = document.createElement("section");
      const figures = line("p", "figures", "");
      half.append(line("h3", "recipe", text.answer.recipe), text.node, figures);
      pair.append(half);
      return figures;
    });
    return pair;
  }

  update(running) {
    const { turn } = this;
    if (turn.role === "user") this.body.textContent = turn.text;
    else for (const text of this.texts) text.update(Boolean(turn.parts));
    for (const [i, figuresLine] of (this.halves || []).entries()) {
      const { answer } = this.texts[i];
      figuresLine.textContent = figures(answer);
      figuresLine.parentElement.classList.toggle("ended", !running || Boolean(answer.end));
    }
    this.node.classList.toggle("running", running);
    this.node.setAttribute("aria-busy", String(running));
    if (running) return this.foot.replaceChildren();
    for (const text of this.texts) reachByKeyboard(text.node);
    this.foot.replaceChildren(...this.#branchSwitch(), ...this.#buttons());
    const text = turn.other ? turn.alike : figures(turn);
    if (text) this.foot.append(line("span", "figures", text));
    for (const { error } of [turn, turn.other || {}]) if (error) this.foot.append(line("p", "error", error));
  }

  #button(text, action, name = text) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", name);
    button.addEventListener("click", action);
    return button;
  }

  #branchSwitch() {
    const at = this.branches.indexOf(this.turn), n = this.branches.length;
    if (n < 2) return [];
    const place = document.createElement("span");
    place.textContent = `${at + 1}/${n}`;
    const step = (by, sign, name) => {
      const button = this.#button(sign, () => this.actions.pick(this.branches[at + by]), name);
      button.disabled = !this.branches[at + by];
      return button;
    };
    return [step(-1, "‹", "Earlier version"), place, step(1, "›", "Later version")];
  }

  #buttons() {
    const buttons = [copyButton(() => this.turn.text), this.#button("Edit", () => this.edit())];
    if (this.turn.role === "assistant") buttons.push(this.#button("Again", () => this.actions.again(this.turn), "Generate again"));
    return buttons;
  }

  // Edits the turn in place. Enter saves the text as a new branch, and Esc changes nothing.
  edit() {
    const area = document.createElement("textarea");
    area.value = this.turn.text;
    area.rows = Math.min(12, this.turn.text.split("\n").length + 1);
    area.setAttribute("aria-label", "Edit this turn");
    const finish = () => {
      this.body.shownBlocks = [];
      this.body.replaceChildren();
      this.update(false);
    };
    const take = () => (area.value.trim() && area.value !== this.turn.text ? this.actions.edit(this.turn, area.value) : finish());
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") finish();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) take();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.body.replaceChildren(area);
    this.foot.replaceChildren(this.#button(this.turn.role === "user" ? "Ask" : "Keep", take), this.#button("Cancel", finish));
    area.focus();
  }
}
