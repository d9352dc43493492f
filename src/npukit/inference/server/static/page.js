// The chat page: a conversation with one of the server's models, by the same API that everyone else uses.
import { copy } from "./copy.js";
import { learn, look, onLook, switchLanguage, switchTheme, word } from "./look.js";
import { element, icon, render } from "./markdown.js";
import { asContent, makePictures } from "./pictures.js";
import { WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
const DEFAULTS = { system: "", temperature: "0.7", top_p: "0.95", repetition_penalty: "1", max_tokens: "", seed: "", thinking: true };
const saved = { ...JSON.parse(localStorage.getItem("npukit") ?? "{}") };
const settings = { ...DEFAULTS, ...saved.settings };
let model = saved.model;
const CONVERSATION = `npukit-chat ${location.pathname}`;
let messages = JSON.parse(sessionStorage.getItem(CONVERSATION) ?? "[]"); // {role, text, pictures, reasoning, note, figures}
let running = null;

const keep = () => {
  localStorage.setItem("npukit", JSON.stringify({ settings, model }));
  try {
    sessionStorage.setItem(CONVERSATION, JSON.stringify(messages));
  } catch { // pictures are large
    sessionStorage.setItem(CONVERSATION, JSON.stringify(messages.map((message) => ({ ...message, pictures: [] }))));
  }
};

// Texts, theme and settings ------------------------------------------------------------------------------------------
function speak() {
  $("language").textContent = word("name");
  $("ideas").replaceChildren(...word("ideas").map((idea) => {
    const button = element("button", { type: "button" }, idea);
    button.onclick = () => ask(idea);
    return button;
  }));
  draw();
}

function showSettings() {
  for (const name of Object.keys(DEFAULTS)) {
    const field = $(name);
    if (field.type === "checkbox") field.checked = settings[name];
    else field.value = settings[name];
    const shown = document.querySelector(`output[for="${name}"]`);
    if (shown) shown.textContent = settings[name];
  }
}

for (const name of Object.keys(DEFAULTS)) {
  $(name).oninput = () => {
    settings[name] = $(name).type === "checkbox" ? $(name).checked : $(name).value;
    showSettings();
    keep();
  };
}
$("defaults").onclick = () => { Object.assign(settings, DEFAULTS); showSettings(); keep(); };
$("key").value = sessionStorage.getItem("npukit-key") ?? "";
$("key").onchange = () => { sessionStorage.setItem("npukit-key", $("key").value); listModels(); };
$("language").onclick = switchLanguage;
$("theme").onclick = switchTheme;
const openSettings = (open) => { $("settings").hidden = !open; $("open-settings").setAttribute("aria-expanded", open); };
$("open-settings").onclick = () => openSettings($("settings").hidden);
$("close-settings").onclick = () => openSettings(false);
$("new").onclick = () => { running?.abort(); messages = []; keep(); draw(); $("prompt").focus(); };
$("model").onchange = () => { model = $("model").value; keep(); };

// The server ---------------------------------------------------------------------------------------------------------
function call(path, options = {}) {
  const key = $("key").value;
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  return fetch(path, { ...options, headers });
}

async function problem(response) {
  if (response.status === 401) { openSettings(true); $("key").focus(); return word("needsKey"); }
  return (await response.json().catch(() => null))?.error?.message ?? `${response.status} ${response.statusText}`;
}

async function listModels() {
  try {
    const response = await call("v1/models");
    if (!response.ok) throw new Error(await problem(response));
    const models = (await response.json()).data;
    const names = models.map((each) => each.id);
    pictures.allow(models.some((each) => each.input_modalities?.includes("image")));
    $("model").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (!names.includes(model)) model = names[0];
    $("model").value = model;
  } catch (error) {
    $("model").replaceChildren(element("option", {}, "—"));
  }
}

function request() {
  const said = messages.slice(0, -1).filter((each) => each.role === "user" || each.text);
  const number = (name) => (settings[name] === "" ? {} : { [name]: Number(settings[name]) });
  return JSON.stringify({
    model,
    messages: [
      ...(settings.system.trim() ? [{ role: "system", content: settings.system }] : []),
      ...said.map((each) => ({ role: each.role, content: asContent(each.text, each.pictures) })),
    ],
    ...number("temperature"), ...number("top_p"), ...number("repetition_penalty"), ...number("max_tokens"), ...number("seed"),
    ...(settings.thinking ? {} : { chat_template_kwargs: { enable_thinking: false } }),
    stream: true,
    stream_options: { include_usage: true },
  });
}

// The chunks of a stream of events, until it says that it is done.
async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}

async function answer() {
  const message = { role: "assistant", text: "", reasoning: "" };
  messages.push(message);
  running = new AbortController();
  const start = performance.now();
  let first = 0;
  draw();
  try {
    const response = await call("v1/chat/completions", { method: "POST", body: request(), signal: running.signal });
    if (!response.ok) throw new Error(await problem(response));
    for await (const chunk of chunks(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices[0];
      message.text += choice?.delta.content ?? "";
      message.reasoning += choice?.delta.reasoning_content ?? "";
      if (!first && (message.text || message.reasoning)) first = performance.now();
      if (choice?.finish_reason === "length") message.note = "cut";
      if (chunk.usage) message.figures = figures(chunk.usage.completion_tokens, start, first || performance.now());
      drawSoon();
    }
  } catch (error) {
    if (error.name === "AbortError") message.note = "stopped";
    else message.error = error instanceof TypeError ? word("unreachable") : error.message;
  }
  running = null;
  keep();
  draw();
}

function figures(tokens, start, first) {
  return { tokens, first: first - start, speed: tokens > 1 ? ((tokens - 1) / (performance.now() - first)) * 1000 : 0 };
}

// The conversation on the page ---------------------------------------------------------------------------------------
function quiet(name, title, act) {
  const button = element("button", { class: "quiet", type: "button", title: word(title), "aria-label": word(title) }, icon(name));
  button.onclick = () => act(button);
  return button;
}

const copyButton = (text) => quiet("copy", "copy", (button) => copy(text, button));

function drawUser(message, index) {
  const edit = quiet("edit", "edit", () => {
    running?.abort();
    $("prompt").value = message.text;
    pictures.put(message.pictures ?? []);
    messages = messages.slice(0, index);
    keep(); draw(); fit(); $("prompt").focus();
  });
  const shown = (message.pictures ?? []).map((address) => element("img", { src: address, alt: "" }));
  return element("article", { class: "message user" },
    ...(shown.length ? [element("div", { class: "shown" }, ...shown)] : []),
    element("div", { class: "text" }, message.text), element("div", { class: "actions" }, copyButton(message.text), edit));
}

function drawAssistant(message, index) {
  const is_running = running && index === messages.length - 1;
  const made = element("article", { class: "message assistant" });
  if (message.reasoning) {
    const title = is_running && !message.text ? "thinkingNow" : "reasoning";
    const inner = element("div", { class: "prose" }, render(message.reasoning, copyButton));
    const details = element("details", { class: "reasoning", ...(is_running && !message.text ? { open: "" } : {}) });
    details.append(element("summary", {}, word(title)), inner);
    made.append(details);
  }
  if (message.text) made.append(element("div", { class: "prose" }, render(message.text, copyButton)));
  if (message.error) made.append(element("div", { class: "error", role: "alert" }, message.error));
  if (is_running) {
    if (!message.text) made.append(element("div", { class: "waiting" }, element("i"), element("i"), element("i")));
    return made;
  }
  const again = quiet("again", "again", () => { messages = messages.slice(0, index); answer(); });
  const actions = element("div", { class: "actions" }, copyButton(message.text), again);
  const told = message.figures
    ? [`${message.figures.tokens} ${word("tokens")}`, `${message.figures.speed.toFixed(1)} ${word("perSecond")}`, `${word("first")} ${message.figures.first.toFixed(0)} ms`]
    : [];
  if (message.note) told.push(word(message.note));
  actions.append(element("span", { class: "figures" }, told.join(" · ")));
  made.append(actions);
  return made;
}

let drawn = []; // what each message looked like: only what has changed is drawn again
function draw() {
  const thread = $("thread");
  const follows = thread.scrollHeight - thread.scrollTop - thread.clientHeight < 90;
  const box = $("messages");
  while (box.children.length > messages.length) box.lastChild.remove();
  messages.forEach((message, index) => {
    const looks = JSON.stringify([message, look.language, running && index === messages.length - 1]);
    if (drawn[index] === looks && box.children[index]) return;
    drawn[index] = looks;
    const made = (message.role === "user" ? drawUser : drawAssistant)(message, index);
    if (box.children[index]) box.children[index].replaceWith(made);
    else box.append(made);
  });
  $("welcome").hidden = messages.length > 0;
  $("stop").hidden = !running;
  $("send").hidden = !!running;
  $("send").disabled = !canSend();
  if (follows || running?.fresh !== false) thread.scrollTop = thread.scrollHeight;
  if (running) running.fresh = false;
}

let waiting = 0; // a frame that is asked for
function drawSoon() {
  waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); });
}

// Writing ------------------------------------------------------------------------------------------------------------
const pictures = makePictures({
  button: $("attach"), input: $("files"), shown: $("pictures"), composer: $("composer"),
  remove: () => word("removePicture"),
  failed: (name) => alert(word("badPicture", { name })),
  changed: () => { $("send").disabled = !canSend(); },
});
function canSend() { return $("prompt").value.trim() !== "" || pictures.any; }

function fit() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
  $("send").disabled = !canSend();
}

function ask(text) {
  if (running || !(text.trim() || pictures.any)) return;
  messages.push({ role: "user", text: text.trim(), pictures: pictures.take() });
  $("prompt").value = "";
  fit();
  keep();
  answer();
}

$("prompt").oninput = fit;
$("prompt").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask($("prompt").value); }
};
$("composer").onsubmit = (event) => { event.preventDefault(); ask($("prompt").value); };
$("stop").onclick = () => running?.abort();
document.onkeydown = (event) => { if (event.key === "Escape") running ? running.abort() : openSettings(false); };

// Inside of the studio, which may ask several models the same.
if (parent !== window) {
  document.documentElement.dataset.framed = "";
  addEventListener("message", (event) => { if (event.origin === location.origin && event.data?.ask) ask(String(event.data.ask)); });
}

learn(WORDS);
showSettings();
onLook(speak);
listModels();
