// The panel: the server's gauges as they change, and the plan's widths as a picture.

import { getJson, getMetrics, ServerError } from "./api.js";

const $ = (id) => document.getElementById(id);
const POLL_MS = 500, HISTORY = 120;  // a minute of speeds
const SPEED_OVER = 4;                // polls that a speed is the mean of

// ---- Gauges

const number = new Intl.NumberFormat("en");

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

const samples = [];  // {time, tokens}
const speeds = [];

function show(id, value, text) {
  $(id).textContent = text;
  $(id).dataset.value = value;
}

/** The cache's gauges; while nothing runs or is kept, those of the last answer stay. */
function showCache(metrics) {
  if (!(metrics.sequence_tokens > 0)) {
    if ($("tokens").dataset.value) $("saves").textContent = "KV cache of the last answer";
    return;
  }
  $("saves").textContent = "KV cache now";
  show("tokens", metrics.sequence_tokens, number.format(metrics.sequence_tokens));
  show("kv-bytes", metrics.kv_bytes, bytes(metrics.kv_bytes));
  show("kv-fp16", metrics.kv_bytes_fp16, bytes(metrics.kv_bytes_fp16));
  const most = Math.max(metrics.kv_bytes, metrics.kv_bytes_fp16);
  $("bar-fp16").style.width = `${100 * metrics.kv_bytes_fp16 / most}%`;
  $("bar-packed").style.width = `${100 * metrics.kv_bytes / most}%`;
  const ratio = metrics.kv_bytes_fp16 / metrics.kv_bytes;
  $("ratio-value").textContent = `${(ratio < 1 ? 1 / ratio : ratio).toFixed(2)}×`;
  $("ratio-text").textContent = ratio < 1 ? "larger than fp16, so far" : "smaller than fp16";
}

function showWork(metrics) {
  for (const [id, name] of [["running", "requests_running"], ["waiting", "requests_waiting"],
    ["prompt", "prompt_tokens_total"], ["cached", "cached_tokens_total"], ["pages-used", "page_tokens_used"],
    ["pages-all", "page_tokens"]]) {
    show(id, metrics[name], number.format(metrics[name]));
  }
  samples.push({ time: performance.now(), tokens: metrics.new_tokens_total });
  if (samples.length > SPEED_OVER + 1) samples.shift();
  const first = samples[0], last = samples[samples.length - 1];
  const seconds = (last.time - first.time) / 1000;
  const speed = seconds > 0 ? Math.max(0, (last.tokens - first.tokens) / seconds) : 0;
  show("speed", speed, speed.toFixed(1));
  speeds.push(speed);
  if (speeds.length > HISTORY) speeds.shift();
  drawSpeeds();
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The canvas's context, its size in CSS pixels, with nothing on it. */
function clean(canvas) {
  const scale = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { context, width, height };
}

function drawSpeeds() {
  const { context, width, height } = clean($("speeds"));
  const most = Math.max(1, ...speeds), step = width / (HISTORY - 1), left = width - (speeds.length - 1) * step;
  const y = (speed) => height - 1 - (height - 4) * (speed / most);
  context.strokeStyle = colour("--line");
  context.beginPath();
  context.moveTo(0, height - 0.5);
  context.lineTo(width, height - 0.5);
  context.stroke();
  context.beginPath();
  speeds.forEach((speed, i) => context.lineTo(left + i * step, y(speed)));
  context.strokeStyle = colour("--accent");
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
}

async function poll() {
  try {
    if (!document.hidden) {
      const metrics = await getMetrics();
      $("connection").textContent = "";
      showCache(metrics);
      showWork(metrics);
    }
  } catch (error) {
    if (error instanceof ServerError && error.status === 501) {
      $("ratio-text").textContent = error.message;
      return;  // metrics are off and stay so
    }
    $("connection").textContent = "The server does not answer";
  }
  setTimeout(poll, POLL_MS);
}

// ---- The plan

let plan = null;
const WIDTHS = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const VALUE_GAP = 0.04, VALUE_PART = 0.1;  // of the picture's width

const mean = (list) => list.reduce((sum, x) => sum + x, 0) / list.length;

/** Bits of a cell: of one head, or the mean over the heads. */
function keyBits(layer, block) {
  const head = $("head").value;
  return head === "" ? mean(plan.keys[layer].map((widths) => widths[block])) : plan.keys[layer][head][block];
}
function valueBits(layer) {
  const head = $("head").value;
  return head === "" ? mean(plan.values[layer]) : plan.values[layer][head];
}

/** A colour for a number of bits: between the colours of the whole widths beside it. */
function bitColour(bits, palette) {
  const low = Math.floor(bits), share = bits - low;
  const [a, b] = [palette[low], palette[Math.min(low + 1, 8)]];
  return `rgb(${a.map((x, i) => Math.round(x + (b[i] - x) * share)).join(",")})`;
}

function readPalette() {
  return WIDTHS.map((width) => {
    const hex = colour(`--w${width}`);
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  });
}

function drawPlan() {
  if (!plan) return;
  const { context, width, height } = clean($("widths"));
  const palette = readPalette();
  const keyWidth = width * (1 - VALUE_GAP - VALUE_PART), cellW = keyWidth / plan.blocks, cellH = height / plan.layers;
  const gap = cellH > 5 ? 1 : 0;
  for (let layer = 0; layer < plan.layers; ++layer) {
    const top = Math.round(layer * cellH), bottom = Math.round((layer + 1) * cellH) - gap;
    for (let block = 0; block < plan.blocks; ++block) {
      context.fillStyle = bitColour(keyBits(layer, block), palette);
      const left = Math.round(block * cellW);
      context.fillRect(left, top, Math.round((block + 1) * cellW) - left, bottom - top);
    }
    context.fillStyle = bitColour(valueBits(layer), palette);
    context.fillRect(Math.round(width * (1 - VALUE_PART)), top, width * VALUE_PART, bottom - top);
  }
  if (cursor) {
    const value = cursor.block === plan.blocks;
    context.strokeStyle = colour("--ink");
    context.lineWidth = 2;
    context.strokeRect(value ? width * (1 - VALUE_PART) : cursor.block * cellW, cursor.layer * cellH,
                       value ? width * VALUE_PART : cellW, cellH);
  }
}

function drawLegend() {
  const counts = new Map();
  let all = 0;
  for (const layer of plan.keys) {
    for (const widths of layer) {
      for (const width of widths) counts.set(width, (counts.get(width) ?? 0) + 1);
      all += widths.length;
    }
  }
  for (const layer of plan.values) for (const width of layer) if (!counts.has(width)) counts.set(width, 0);
  $("legend").replaceChildren(...[...counts.keys()].sort((a, b) => a - b).map((width) => {
    const item = document.createElement("span"), swatch = document.createElement("i");
    swatch.className = `w${width}`;
    item.append(swatch, `${width} bit${width === 1 ? "" : "s"} `);
    const share = document.createElement("small");
    share.textContent = counts.get(width) > 0 ? `${(100 * counts.get(width) / all).toFixed(0)}% of keys` : "values";
    item.append(share);
    return item;
  }));
}

let cursor = null;  // {layer, block}; block plan.blocks is the value

function point(layer, block) {
  cursor = { layer: Math.min(Math.max(layer, 0), plan.layers - 1), block: Math.min(Math.max(block, 0), plan.blocks) };
  const value = cursor.block === plan.blocks;
  const bits = value ? valueBits(cursor.layer) : keyBits(cursor.layer, cursor.block);
  $("cell").textContent = `layer ${cursor.layer}, ${value ? "value" : `key block ${cursor.block}`}: ` +
    `${Number.isInteger(bits) ? bits : bits.toFixed(2)} bits`;
  drawPlan();
}

$("widths").addEventListener("mousemove", (event) => {
  if (!plan) return;
  const box = event.target.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  const block = x >= 1 - VALUE_PART ? plan.blocks : Math.floor(x / (1 - VALUE_GAP - VALUE_PART) * plan.blocks);
  point(Math.floor(y * plan.layers), Math.min(block, x >= 1 - VALUE_PART ? plan.blocks : plan.blocks - 1));
});
$("widths").addEventListener("mouseleave", () => {
  cursor = null;
  $("cell").textContent = "\u00a0";
  drawPlan();
});
$("widths").addEventListener("keydown", (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step || !plan) return;
  event.preventDefault();
  if (cursor) point(cursor.layer + step[0], cursor.block + step[1]);
  else point(0, 0);
});
$("head").addEventListener("change", () => (cursor ? point(cursor.layer, cursor.block) : drawPlan()));
document.addEventListener("themechange", () => {
  drawPlan();
  drawSpeeds();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawPlan();
  drawSpeeds();
});
new ResizeObserver(() => {
  drawPlan();
  drawSpeeds();
}).observe($("panel"));

async function loadPlan() {
  try {
    plan = await getJson("/plan");
  } catch (error) {
    $("plan-section").classList.add("none");
    $("plan-text").textContent = error.message;
    return;
  }
  const ratio = plan.bytes_per_token_fp16 / plan.bytes_per_token;
  $("each").textContent = "Of running answers and kept slots. The last tokens stay in fp16 and their room is " +
    `taken at once; each older one takes ${bytes(plan.bytes_per_token)} for ${bytes(plan.bytes_per_token_fp16)} ` +
    `(${ratio.toFixed(2)}× smaller).`;
  $("plan-text").textContent =
    `${plan.recipe}: keys have ${plan.key_bits} bits a number in the mean, values ${plan.value_bits}. ` +
    `A row a layer, ${plan.layers} from the first at the top.`;
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
  $("head").replaceChildren(option("", `mean of ${plan.kv_heads}`),
                            ...Array.from({ length: plan.kv_heads }, (_, h) => option(h, String(h))));
  $("widths").setAttribute("aria-label", `Bits of keys in ${plan.layers} layers by ${plan.blocks} frequency blocks, ` +
    "and of values; arrow keys read single cells");
  drawLegend();
  drawPlan();
}

poll();
loadPlan();
