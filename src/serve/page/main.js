// Connects the parts of the page, and handles keys.
import { getJson } from "./api.js";
import { CachePane } from "./cache.js";
import { Chat } from "./chat.js";
import { loadConversations, newConversation, removeConversation } from "./conversations.js";
import { loadSettings, openSettings, saveSettings, settings } from "./settings.js";

const $ = (id) => document.getElementById(id);
const prompt = $("prompt"), send = $("send");
const conversations = loadConversations();
const cache = new CachePane($("cache"));

let asking = null;  // the open dialog for the key; several requests share one dialog
function needKey() {
  asking ||= openSettings($("settings"), true).finally(() => { asking = null; });
  return asking;
}

const chat = new Chat($("turns"), {
  settings: () => ({ ...settings, guard: hasGuard && settings.guard, compare: settings.compare ? compared : null }),
  needKey,
  changed: drawList,
  running: (running) => {
    send.textContent = running ? "Stop" : "Send";
    document.body.classList.toggle("answering", running);
    if (!running && matchMedia("(hover: hover)").matches && document.activeElement === document.body) prompt.focus();
    cache.look();
  },
});


function show(conversation) {
  chat.show(conversation);
  drawList();
  setDrawer("conversations", false);
}

function startConversation() {
  const empty = conversations.find((c) => c.turns.length === 0) || newConversation();
  if (!conversations.includes(empty)) conversations.unshift(empty);
  show(empty);
  prompt.focus();
}

function remove(conversation) {
  if (!confirm(`Delete "${conversation.title}"?`)) return;
  if (chat.answer?.conversation === conversation) chat.stop();
  removeConversation(conversation);
  conversations.splice(conversations.indexOf(conversation), 1);
  if (chat.conversation !== conversation) return drawList();
  if (conversations.length > 0) show(conversations[0]);
  else startConversation();
}

function drawList() {
  const list = $("conversation-list");
  list.replaceChildren();
  for (const conversation of conversations) {
    if (conversation.turns.length === 0) continue;
    const item = document.createElement("li");
    const open = document.createElement("button");
    open.type = "button";
    open.textContent = conversation.title || "Untitled";
    if (conversation === chat.conversation) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => show(conversation));
    const drop = document.createElement("button");
    drop.type = "button";
    drop.className = "drop";
    drop.textContent = "×";
    drop.setAttribute("aria-label", `Delete ${conversation.title}`);
    drop.addEventListener("click", () => remove(conversation));
    item.append(open, drop);
    list.append(item);
  }
}


function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, innerHeight * 0.4)}px`;
}

function submit() {
  if (chat.isRunning) return chat.stop();
  const text = prompt.value.trim();
  if (!text) return;
  prompt.value = "";
  fitPrompt();
  chat.ask(text);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
prompt.addEventListener("input", fitPrompt);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!chat.isRunning) submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (chat.isRunning) return chat.stop();
  setDrawer("conversations", false);
  setDrawer("cache", false);
});


function setDrawer(id, open) {
  $(id).classList.toggle("open", open);
  document.querySelector(`[aria-controls="${id}"]`).setAttribute("aria-expanded", String(open));
}
for (const button of document.querySelectorAll("header [aria-controls]")) {
  button.addEventListener("click", () => {
    const id = button.getAttribute("aria-controls");
    const opens = !$(id).classList.contains("open");
    for (const drawer of ["conversations", "cache"]) setDrawer(drawer, drawer === id && opens);
  });
}

let hasGuard = false;  // true if the server has a guard
let compared = null;   // { recipe, other: { model, recipe } } if the server has two recipes

function showSwitches() {
  for (const [name, legend, on] of [["probabilities", "probability-legend", settings.probabilities],
                                    ["guard", "guard-legend", hasGuard && settings.guard],
                                    ["compare", "compare-legend", compared && settings.compare]]) {
    document.body.classList.toggle(name, Boolean(on));
    $(name).setAttribute("aria-pressed", String(Boolean(on)));
    $(legend).hidden = !on;
  }
  $("guard").hidden = !hasGuard;
  $("compare").hidden = !compared;
}
for (const name of ["probabilities", "guard", "compare"]) {
  $(name).addEventListener("click", () => {
    saveSettings({ [name]: !settings[name] });
    showSwitches();
  });
}
$("open-settings").addEventListener("click", async () => {
  if (await openSettings($("settings"))) describe();
});
$("new-chat").addEventListener("click", startConversation);

async function describe() {
  try {
    const props = await getJson("/props");
    $("subject").textContent = `${props.model} · ${props.kv.recipe} · ${props.default_generation_settings.n_ctx.toLocaleString("en")} tokens of context`;
    document.title = `kvant · ${props.model}`;
    hasGuard = props.guard;
    if (props.compare && !compared) {
      const other = { model: props.compare.model, recipe: props.compare.kv.recipe };
      compared = { recipe: props.kv.recipe, other };
      cache.choose([{ model: props.model, recipe: props.kv.recipe }, other]);
    }
    showSwitches();
  } catch (error) {
    $("subject").textContent = error.message;
    if (error.status === 401 && await needKey()) return describe();
  }
}

loadSettings();
showSwitches();
startConversation();
await describe();
cache.run();
document.body.dataset.ready = "true";
