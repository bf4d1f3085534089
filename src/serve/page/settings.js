// Keeps the user's settings in the browser's storage. The API key is kept only as long as the tab is open.
import { apiKey, setApiKey } from "./api.js";

const KEY = "kvant.settings";
const DEFAULTS = { system: "", temperature: 0.7, maxTokens: 1024, probabilities: false, guard: false, compare: true };

export const settings = { ...DEFAULTS };

export function loadSettings() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY)) || {};
    for (const name of Object.keys(DEFAULTS)) if (typeof kept[name] === typeof DEFAULTS[name]) settings[name] = kept[name];
  } catch { /* the kept text is not JSON, so the defaults stay */ }
}

export function saveSettings(changes) {
  Object.assign(settings, changes);
  try {
    localStorage.setItem(KEY, JSON.stringify(settings));
  } catch { /* the storage is full, so the settings last as long as the page */ }
}

// Opens the settings dialog. The promise resolves to whether the user saved. With wantsKey, the dialog says
// that the server needs a key.
export function openSettings(dialog, wantsKey = false) {
  const form = dialog.querySelector("form");
  const { system, temperature, maxTokens, key, cancel } = form.elements;
  system.value = settings.system;
  temperature.value = settings.temperature;
  maxTokens.value = settings.maxTokens;
  key.value = apiKey();
  key.classList.toggle("wanted", wantsKey);
  dialog.querySelector("h2").textContent = wantsKey ? "This server requires an API key" : "Settings";
  dialog.showModal();
  if (wantsKey) key.focus();
  return new Promise((resolve) => {
    let saved = false;
    form.onsubmit = (event) => {
      event.preventDefault();
      saveSettings({ system: system.value, temperature: temperature.valueAsNumber, maxTokens: maxTokens.valueAsNumber });
      setApiKey(key.value.trim());
      saved = true;
      dialog.close();
    };
    cancel.onclick = () => dialog.close();
    dialog.onclose = () => resolve(saved);
  });
}
