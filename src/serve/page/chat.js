// Runs the conversation in the middle of the page: sends prompts, streams completions, stops them and repeats
// them.
import { ApiError, streamChat } from "./api.js";
import { addTurn, parentOf, path, pick, saveConversation, siblings } from "./conversations.js";
import { Parting } from "./parting.js";
import { MarkedTokens } from "./probabilities.js";
import { TurnView } from "./turn.js";

const RIVALS = 3;       // the page lists this many of the likeliest tokens for an unlikely token
const NEAR_END = 80;    // pixels; the page does not scroll for a reader who has scrolled up further

export class Chat {
  // `hooks` has these functions. settings() returns { system, temperature, maxTokens, probabilities, guard,
  // compare }, where compare is null or { recipe, other: { model, recipe } }. needKey() asks for the API key
  // and returns false if the user gives none. changed() reports that the conversation's turns have changed.
  // running(bool) reports whether a completion is being generated.
  constructor(host, hooks) {
    this.host = host;
    this.hooks = hooks;
    this.conversation = null;
    this.answer = null;  // the completion that is being generated: { conversation, turn, controller }
    this.views = [];
  }

  show(conversation) {
    this.conversation = conversation;
    this.#draw();
    this.host.scrollTop = this.host.scrollHeight;
  }

  get isRunning() { return this.answer !== null; }

  ask(text) {
    const turns = path(this.conversation);
    addTurn(this.conversation, turns[turns.length - 1], "user", text);
    return this.#answer(this.conversation);
  }

  stop() {
    this.answer?.controller.abort();
  }

  #draw() {
    const actions = {
      pick: (turn) => this.#change(() => pick(this.conversation, turn)),
      again: (turn) => this.#again(turn),
      edit: (turn, text) => this.#edit(turn, text),
    };
    this.views = path(this.conversation).map((turn) => new TurnView(turn, siblings(this.conversation, turn), actions));
    this.host.replaceChildren(...this.views.map((view) => view.node));
    if (this.views.length === 0) this.host.append(document.getElementById("welcome").content.cloneNode(true));
    this.views.find((view) => view.turn === this.answer?.turn)?.update(true);
  }

  #change(action) {
    action();
    saveConversation(this.conversation);
    this.#draw();
    this.hooks.changed();
  }

  #again(turn) {
    if (this.isRunning) return;
    this.#answer(this.conversation, parentOf(this.conversation, turn));
  }

  #edit(turn, text) {
    if (this.isRunning) return;
    this.#change(() => addTurn(this.conversation, parentOf(this.conversation, turn), turn.role, text));
    if (turn.role === "user") this.#answer(this.conversation);
  }

  // Generates a completion for the user's turn `asked`, which is the last turn by default.
  async #answer(conversation, asked = path(conversation).at(-1)) {
    const turns = path(conversation);
    const messages = turns.slice(0, turns.indexOf(asked) + 1).map(({ role, text }) => ({ role, content: text }));
    const turn = addTurn(conversation, asked, "assistant", "");
    this.answer = { conversation, turn, controller: new AbortController() };
    this.#draw();
    this.host.scrollTop = this.host.scrollHeight;
    this.hooks.changed();
    this.hooks.running(true);
    try {
      await this.#stream(turn, messages);
    } catch (error) {
      if (error.name === "AbortError") turn.end = "stopped";
      else turn.error = error instanceof ApiError ? `The request failed: ${error.message}.` : `The page failed: ${error.message}`;
    }
    this.answer = null;
    if (!saveConversation(conversation)) turn.error = "The browser has no space left for this conversation: delete others.";
    this.#follow(() => this.views.find((view) => view.turn === turn)?.update(false));
    this.hooks.running(false);
  }

  async #stream(turn, messages) {
    const settings = this.hooks.settings();
    if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
    const body = { messages, temperature: settings.temperature, max_tokens: settings.maxTokens };
    if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: RIVALS });
    if (settings.guard) Object.assign(body, { logprobs: true, guard: true });
    if (settings.compare) return this.#streamBoth(turn, body, settings);
    const tokens = new MarkedTokens(settings);
    if (settings.probabilities || settings.guard) turn.marks = tokens.marks;
    this.#draw();
    await this.#streamInto(turn, body, () => this.#redraw(turn), tokens);
  }

  // Sends the same prompt with the same seed to both recipes at the same time.
  async #streamBoth(turn, body, settings) {
    const { recipe, other } = settings.compare;
    const sides = [new MarkedTokens(settings), new MarkedTokens(settings)];
    const parting = new Parting(sides, [recipe, other.recipe]);
    Object.assign(turn, { recipe, marks: sides[0].marks, other: { recipe: other.recipe, text: "", marks: sides[1].marks } });
    Object.assign(body, { logprobs: true, seed: crypto.getRandomValues(new Uint32Array(1))[0] });
    this.#draw();
    const redraw = () => {
      if (parting.look()) turn.parts = true;
      this.#redraw(turn);
    };
    const wanted = [[turn, body], [turn.other, { ...body, model: other.model }]];
    const ends = await Promise.allSettled(wanted.map(([answer, asked], i) => this.#streamInto(answer, asked, redraw, sides[i])));
    parting.finish();
    if (ends.every((end) => end.status === "fulfilled")) turn.alike = parting.text;
    if (ends[1].status === "rejected" && ends[1].reason.name !== "AbortError") turn.other.error = `The request failed: ${ends[1].reason.message}.`;
    if (ends[1].status === "rejected" && ends[1].reason.name === "AbortError") turn.other.end = "stopped";
    if (ends[0].status === "rejected") throw ends[0].reason;
  }

  // Streams a completion into `answer`: { text, usage, end, seconds, answering }.
  async #streamInto(answer, body, redraw, tokens) {
    const start = performance.now();
    let first = 0;
    for await (const chunk of this.#chunks(body)) {
      const choice = chunk.choices[0];
      if (chunk.usage) answer.usage = chunk.usage;
      if (!choice) continue;
      first ||= performance.now();
      if (choice.logprobs) tokens.add(choice.logprobs.content);
      answer.text += choice.delta.content || "";
      if (choice.finish_reason) answer.end = choice.finish_reason;
      redraw();
    }
    answer.seconds = (performance.now() - start) / 1000;
    answer.answering = (performance.now() - first) / 1000;
  }

  // Yields the chunks. If the server wants a key, the function asks the user for the key and tries again.
  async *#chunks(body) {
    const { signal } = this.answer.controller;
    while (true) {
      try {
        return yield* streamChat(body, signal);
      } catch (error) {
        if (error.status !== 401 || !await this.hooks.needKey()) throw error;
      }
    }
  }

  // Redraws the turn at most once per frame of the browser.
  #redraw(turn) {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.answer?.turn !== turn) return;
      this.#follow(() => this.views.find((view) => view.turn === turn)?.update(true));
    });
  }

  #follow(draw) {
    const { host } = this;
    const atEnd = host.scrollHeight - host.scrollTop - host.clientHeight < NEAR_END;
    draw();
    if (atEnd) host.scrollTop = host.scrollHeight;
  }
}
