// Requests to the server that sent this page: the key, streams of events, the server's metrics.

const KEY = "blockgtq-key";

/** An answer that is no success: its HTTP status, and what the server says. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

const dialog = document.getElementById("key-dialog");
dialog.addEventListener("cancel", (event) => event.preventDefault());  // without a key there is nothing to see
let asking = null;

/** Asks for the key; resolves when one was given. Those who ask while it is open wait for the same one. */
function askForKey() {
  if (asking) return asking;
  const given = sessionStorage.getItem(KEY) !== null;
  document.getElementById("key-note").textContent =
    given ? "That key is not one of the server's." : "It stays in this tab until the tab is closed.";
  const field = document.getElementById("key");
  field.value = "";
  asking = new Promise((resolve) => {
    document.getElementById("key-form").addEventListener("submit", () => {
      sessionStorage.setItem(KEY, field.value);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
    field.focus();
  });
  return asking;
}

/** fetch, with the key and asking for it as long as it is wrong. Throws ServerError. */
export async function request(path, options = {}) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: { ...options.headers, ...headers() } });
    if (response.ok) return response;
    if (response.status === 401) {
      await askForKey();
      continue;
    }
    let message = `the server answers ${response.status}`;
    try {
      message = (await response.json()).error.message;
    } catch {
      // not the server's own error; the status says what there is to say
    }
    throw new ServerError(response.status, message);
  }
}

export async function getJson(path) {
  return (await request(path)).json();
}

/** The server's gauges and counters by name, without the prefix "blockgtq_". */
export async function getMetrics() {
  const text = await (await request("/metrics")).text();
  const values = {};
  for (const line of text.split("\n")) {
    const found = /^blockgtq_(\w+) (\S+)$/.exec(line);
    if (found) values[found[1]] = Number(found[2]);
  }
  return values;
}

/** Posts `body` and yields each event of the stream that answers it; throws when the stream is cut or fails. */
export async function* stream(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ServerError(0, "the connection ended before the answer did");
    pending += value;
    const events = pending.split("\n\n");
    pending = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new ServerError(parsed.error.code, parsed.error.message);
      yield parsed;
    }
  }
}
