// Keeps each conversation under a key of its own in the browser's storage. The turns of a conversation form a
// tree: an edited or repeated turn becomes another branch.

const PREFIX = "kvant.conversation.";
const ROOT = -1;

// A conversation is { id, title, updated, turns: [{ id, parent, role, text, ... }], picked: { [parent]: id }
// }, where `picked` holds the branch that is shown after each turn.
export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", updated: Date.now(), turns: [], picked: {} };
}

const isConversation = (c) => c && typeof c.id === "string" && Array.isArray(c.turns) && typeof c.picked === "object";

// Returns all conversations, the newest first. Other keys in the storage are left alone.
export function loadConversations() {
  const found = [];
  for (const key of Object.keys(localStorage)) {
    if (!key.startsWith(PREFIX)) continue;
    try {
      const conversation = JSON.parse(localStorage.getItem(key));
      if (isConversation(conversation)) found.push(conversation);
    } catch { /* another program wrote this value */ }
  }
  return found.sort((a, b) => b.updated - a.updated);
}

// Returns false if the browser's storage is full.
export function saveConversation(conversation) {
  if (conversation.removed) return true; // a completion may end after its conversation was deleted
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

export function removeConversation(conversation) {
  conversation.removed = true;
  localStorage.removeItem(PREFIX + conversation.id);
}

export const siblings = (conversation, turn) => conversation.turns.filter((t) => t.parent === turn.parent);

// Returns the turns that are shown, starting with the first.
export function path(conversation) {
  const shown = [];
  for (let parent = ROOT; ;) {
    const branches = conversation.turns.filter((t) => t.parent === parent);
    if (branches.length === 0) return shown;
    const turn = branches.find((t) => t.id === conversation.picked[parent]) || branches[branches.length - 1];
    shown.push(turn);
    parent = turn.id;
  }
}

export function pick(conversation, turn) {
  conversation.picked[turn.parent] = turn.id;
}

// Adds a turn after `parent` and shows the new turn. Without `parent`, the turn is a first one.
export function addTurn(conversation, parent, role, text) {
  const turn = { id: conversation.turns.length, parent: parent ? parent.id : ROOT, role, text };
  conversation.turns.push(turn);
  pick(conversation, turn);
  if (!conversation.title && role === "user") conversation.title = text.trim().split("\n")[0].slice(0, 60);
  conversation.updated = Date.now();
  return turn;
}

export const parentOf = (conversation, turn) => conversation.turns[turn.parent];
