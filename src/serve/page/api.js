// Calls the server's API for the page.

const KEY = "kvant.key";

export const apiKey = () => sessionStorage.getItem(KEY) || "";
export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function failure(response) {
  let message = `the server returned status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* the body is not the server's JSON, so the first message stays */ }
  return new ApiError(response.status, message);
}

async function request(path, options = {}) {
  const key = apiKey();
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server does not respond");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export async function getJson(path) {
  return (await request(path)).json();
}

// Yields the data of server-sent events.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
      if (buffer.startsWith("data: ")) yield buffer.slice(6, end);
    }
  }
}

// Yields the chunks of a chat completion. If the completion fails after its start, an ApiError is thrown.
export async function* streamChat(body, signal) {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.code, chunk.error.message);
    yield chunk;
  }
  throw new ApiError(0, "the connection was lost before the completion ended");
}
