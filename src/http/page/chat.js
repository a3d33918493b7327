// The chat: messages, the box they are written in, and answers as they come. What the model says is put into the page
// as text, never as HTML.

import { getJson, stream } from "./api.js";

const $ = (id) => document.getElementById(id);
const log = $("log"), input = $("input"), send = $("send"), stop = $("stop");

let model = "";
let hasTemplate = true;
let messages = [];      // {role, content}
let controller = null;  // of the answer that is coming

// ---- Messages

/** A paragraph's text, with `code` and **strong** as elements. */
function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part, i) => {
    if (i % 2 === 0) return part;
    const strong = part.startsWith("**");
    const element = document.createElement(strong ? "strong" : "code");
    element.textContent = strong ? part.slice(2, -2) : part.slice(1, -1);
    return element;
  });
}

/** Paragraphs and fenced code of a text, as elements; whatever else is in it stays as it is written. */
function render(target, text) {
  const parts = [];
  text.split(/^```/m).forEach((part, i) => {
    if (i % 2 === 0) {
      const words = part.replace(/^\n+|\s+$/g, "");
      if (!words) return;
      const p = document.createElement("p");
      p.append(...inline(words));
      parts.push(p);
      return;
    }
    const line = part.indexOf("\n");
    const pre = document.createElement("pre"), code = document.createElement("code");
    code.textContent = line < 0 ? "" : part.slice(line + 1).replace(/\n$/, "");
    pre.tabIndex = 0;
    pre.append(code);
    parts.push(pre);
  });
  target.replaceChildren(...parts);
}

function nearBottom() {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function addMessage(role) {
  $("welcome").hidden = true;
  const article = document.createElement("article");
  article.className = role;
  const who = document.createElement("h3");
  who.textContent = role === "user" ? "You" : "Model";
  const body = document.createElement("div");
  body.className = "body";
  const note = document.createElement("p");
  note.className = "note";
  article.append(who, body, note);
  log.append(article);
  log.scrollTop = log.scrollHeight;
  return { article, body, note };
}

function showError(note, text) {
  note.className = "error";
  note.setAttribute("role", "alert");
  note.textContent = text;
}

// ---- Answers

function requestBody() {
  const body = { model, stream: true, stream_options: { include_usage: true } };
  const temperature = $("temperature").valueAsNumber, tokens = $("max-tokens").valueAsNumber;
  if (temperature >= 0) body.temperature = temperature;
  if (tokens >= 1) body.max_tokens = Math.floor(tokens);
  if (!hasTemplate) return { ...body, prompt: messages.map((m) => m.content).join("") };
  const system = $("system").value.trim();
  return { ...body, messages: system ? [{ role: "system", content: system }, ...messages] : messages };
}

function describe(usage, timings, reason) {
  const parts = [`${usage.completion_tokens} tokens`];
  if (timings && timings.predicted_per_second > 0) parts.push(`${timings.predicted_per_second.toFixed(1)} a second`);
  const cached = usage.prompt_tokens_details.cached_tokens;
  parts.push(`prompt ${usage.prompt_tokens}` + (cached > 0 ? `, ${cached} of them from the cache` : ""));
  if (reason === "length") parts.push("ended by the length limit");
  return parts.join(" · ");
}

async function answer() {
  const { article, body, note } = addMessage("assistant");
  article.setAttribute("aria-busy", "true");
  controller = new AbortController();
  setBusy(true);
  let text = "", drawn = true, usage = null, timings = null, reason = "";
  const draw = () => {
    const follow = nearBottom();
    render(body, text);
    if (follow) log.scrollTop = log.scrollHeight;
    drawn = true;
  };
  try {
    const path = hasTemplate ? "/v1/chat/completions" : "/v1/completions";
    for await (const frame of stream(path, requestBody(), controller.signal)) {
      usage = frame.usage ?? usage;
      timings = frame.timings ?? timings;
      const choice = frame.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      text += (hasTemplate ? choice.delta.content : choice.text) ?? "";
      if (drawn) {
        drawn = false;
        requestAnimationFrame(draw);
      }
    }
    if (usage) note.textContent = describe(usage, timings, reason);
    $("announce").textContent = "The answer is complete.";
  } catch (error) {
    if (error.name === "AbortError") {
      note.textContent = "stopped";
      $("announce").textContent = "Stopped.";
    } else {
      showError(note, error instanceof TypeError ? "The server does not answer. Is it still running?"
                                                 : `No answer: ${error.message}`);
    }
  }
  draw();
  article.removeAttribute("aria-busy");
  // What came counts as said; a question that got nothing is asked anew with the next one.
  if (text) messages.push({ role: "assistant", content: text });
  else messages.pop();
  controller = null;
  setBusy(false);
}

function setBusy(busy) {
  send.hidden = busy;
  stop.hidden = !busy;
  document.body.classList.toggle("busy", busy);
}

function submit() {
  const text = hasTemplate ? input.value.trim() : input.value;
  if (!text || controller) return;
  messages.push({ role: "user", content: text });
  render(addMessage("user").body, text);
  input.value = "";
  fit();
  answer();
}

// ---- The box, keys and buttons

/** As high as its text, up to a third of the window. */
function fit() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, window.innerHeight / 3)}px`;
}

input.addEventListener("input", fit);
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && controller) controller.abort();
});
stop.addEventListener("click", () => {
  controller?.abort();
  input.focus();
});
$("new").addEventListener("click", () => {
  controller?.abort();
  messages = [];
  for (const article of log.querySelectorAll("article")) article.remove();
  $("welcome").hidden = false;
  input.focus();
});

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
  localStorage.setItem("blockgtq-theme", theme);
  document.dispatchEvent(new Event("themechange"));
}
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "auto";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
setTheme(THEMES.includes(localStorage.getItem("blockgtq-theme")) ? localStorage.getItem("blockgtq-theme") : "auto");

$("panel-toggle").addEventListener("click", () => {
  const open = document.body.classList.toggle("panel-open");
  $("panel-toggle").setAttribute("aria-expanded", String(open));
});

getJson("/props").then((props) => {
  model = props.model;
  hasTemplate = props.chat;
  $("model").textContent = `${props.model} · ${props.cache}`;
  document.title = `${props.model} · blockgtq`;
  if (hasTemplate) return;
  $("welcome").querySelector("h2").textContent = "Begin a text";
  $("welcome-text").textContent = "This model has no chat template that the server knows: it continues what you write.";
  input.placeholder = "Text to continue";
}).catch((error) => {
  $("model").textContent = error.message;
});
input.focus();
