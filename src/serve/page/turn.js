// One turn of a conversation on the page.
import { copyButton } from "./clipboard.js";
import { render } from "./markdown.js";
import { markedLeaf, plainLeaf } from "./probabilities.js";

const seconds = (s) => (s < 10 ? s.toFixed(1) : s.toFixed(0));

function figures(turn) {
  const parts = [];
  if (turn.usage) {
    const { completion_tokens: made, prompt_tokens: prompt, prompt_tokens_details: details } = turn.usage;
    parts.push(`${made} ${made === 1 ? "token" : "tokens"} in ${seconds(turn.seconds)} s`);
    if (turn.answering > 0 && made > 1) parts.push(`${((made - 1) / turn.answering).toFixed(1)} tokens/s`);
    parts.push(`${details.cached_tokens} of ${prompt} prompt tokens reused`);
    const { guard } = turn.usage;
    if (guard) parts.push(`${guard.differing} of ${guard.tokens} tokens other than without quantization, mean KL divergence ${guard.mean_kld.toPrecision(2)}`);
  }
  if (turn.end === "length") parts.push("ended by its token limit");
  if (turn.end === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

export class TurnView {
  // actions: { edit(turn, text), again(turn), pick(turn) }; branches: the turns that stand in its place.
  constructor(turn, branches, actions) {
    this.turn = turn;
    this.actions = actions;
    this.node = document.createElement("article");
    this.node.className = `turn ${turn.role}`;
    this.body = document.createElement("div");
    this.body.className = "body";
    this.foot = document.createElement("div");
    this.foot.className = "foot";
    this.node.append(this.body, this.foot);
    this.leaf = turn.marks ? markedLeaf(turn.marks) : plainLeaf;
    this.branches = branches;
    this.update(false);
  }

  update(running) {
    const { turn } = this;
    if (turn.role === "user") this.body.textContent = turn.text;
    else render(this.body, turn.text, this.leaf);
    this.node.classList.toggle("running", running);
    this.node.setAttribute("aria-busy", String(running));
    if (running) return this.foot.replaceChildren();
    this.foot.replaceChildren(...this.#branchSwitch(), ...this.#buttons());
    const text = figures(turn);
    if (text) {
      const line = document.createElement("span");
      line.className = "figures";
      line.textContent = text;
      this.foot.append(line);
    }
    if (turn.error) {
      const line = document.createElement("p");
      line.className = "error";
      line.setAttribute("role", "alert");
      line.textContent = turn.error;
      this.foot.append(line);
    }
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
    if (this.turn.role === "assistant") buttons.push(this.#button("Again", () => this.actions.again(this.turn), "Answer again"));
    return buttons;
  }

  // In place: Enter takes the text as a new branch, Esc leaves all as it is.
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
