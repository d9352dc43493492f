// What pages are made of. Text of files, logs and models only ever becomes text nodes.
import { look, word } from "./look.js";
import { element, icon } from "./markdown.js";

export { icon, word };
export const session = {};

// element() that takes listeners (onclick), flags (true or false) and children that may be missing.
export function h(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") made[key] = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// The server ---------------------------------------------------------------------------------------------------------
export async function api(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", "X-Npukit-CSRF": session.csrf },
  };
  let response;
  try {
    response = await fetch(`api/${path}`, options);
  } catch {
    throw new Error(word("unreachable"));
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer?.error?.message ?? `${response.status} ${response.statusText}`);
  return answer;
}

export const query = (path, values) => api(`${path}?${new URLSearchParams(values)}`);

// Pages --------------------------------------------------------------------------------------------------------------
let leaving = [];
export function onLeave(act) { leaving.push(act); }
export function leave() { for (const act of leaving) act(); leaving = []; }
export const go = (page, values = {}) => { location.hash = address(page, values); };
export const address = (page, values = {}) => `#/${page}${Object.keys(values).length ? `?${new URLSearchParams(values)}` : ""}`;

// Call `act` now and again until the page is left; a hidden page rests, and a call that fails is told once.
export function every(milliseconds, act) {
  let left = false;
  let timer = 0;
  let failed = "";
  const again = async () => {
    if (!document.hidden) {
      try {
        await act();
        if (failed) say("");
        failed = "";
      } catch (error) {
        if (error.message !== failed) say(error.message, true);
        failed = error.message;
      }
    }
    if (!left) timer = setTimeout(again, milliseconds);
  };
  onLeave(() => { left = true; clearTimeout(timer); });
  again();
}

// Pieces -------------------------------------------------------------------------------------------------------------
export const page = (title, hint, ...parts) =>
  h("div", { class: "page" }, h("div", { class: "top" }, h("h1", {}, title), hint && h("p", { class: "lead" }, hint)), ...parts);
export const card = (title, ...parts) => h("section", { class: "card" }, title && h("h2", {}, title), ...parts);
export const row = (...parts) => h("div", { class: "row" }, ...parts);
export const badge = (state) => h("span", { class: `badge ${state}` }, word(`state_${state}`));
export const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, text);
export const empty = (title, text, ...actions) =>
  h("div", { class: "empty" }, h("p", { class: "strong" }, title), h("p", {}, text), actions.length ? row(...actions) : null);
export const problem = (text) => h("div", { class: "error", role: "alert" }, text);
export const working = (text) => h("div", { class: "working", role: "status" }, h("i"), text ?? word("working"));

// A button; while its work runs it cannot be pressed again, and what goes wrong is told.
export function button(text, act, kind = "") {
  const made = h("button", { type: "button", class: `button ${kind}` }, text);
  made.onclick = async () => {
    made.disabled = true;
    try { await act(made); } catch (error) { say(error.message, true); }
    made.disabled = false;
  };
  return made;
}

export const link = (text, page, values, kind = "button") => h("a", { class: kind, href: address(page, values) }, text);

let telling = 0;
export function say(text, wrong = false) {
  const box = document.getElementById("said");
  box.replaceChildren(text ? h("span", { class: wrong ? "wrong" : "" }, text) : "");
  clearTimeout(telling);
  if (text) telling = setTimeout(() => box.replaceChildren(), wrong ? 9000 : 3500);
}

export function copyButton(text) {
  const made = h("button", { type: "button", class: "quiet", title: word("copy"), "aria-label": word("copy") }, icon("copy"));
  made.onclick = async () => {
    await navigator.clipboard?.writeText(text);
    made.replaceChildren(icon("done"));
    setTimeout(() => made.replaceChildren(icon("copy")), 1200);
  };
  return made;
}

// The command that does the same, for whoever wants to learn it.
export const command = (text) =>
  h("div", { class: "command" }, h("span", { class: "prompt", "aria-hidden": "true" }, "$"), h("code", {}, text), copyButton(text));

// columns: [{title, cell(row), number}]
export function table(columns, rows, act) {
  const cell = (column, each) => h("td", { class: `${column.number ? "number " : ""}${column.class ?? ""}`, "data-title": column.title }, column.cell(each));
  const head = columns.map((column) => h(column.title ? "th" : "td", { class: `${column.number ? "number " : ""}${column.class ?? ""}`, scope: column.title && "col" }, column.title));
  const body = rows.map((each) => h("tr", { class: act && "link", onclick: act && ((event) => { if (!event.target.closest("a, input, button")) act(each); }) },
    columns.map((column) => cell(column, each))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": columns.map((each) => each.title).filter(Boolean).join(", ") }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

let fields = 0;
export function field(label, input, help, more = {}) {
  input.id ||= `field-${++fields}`;
  const told = help && h("p", { class: "help", id: `${input.id}-help` }, help);
  if (told) input.setAttribute("aria-describedby", told.id);
  return h("div", { class: `field ${more.class ?? ""}`, ...more.attributes }, h("label", { for: input.id }, label, more.beside), more.around ? more.around(input) : input, told);
}

export function select(choices, value, act) {
  const options = choices.map((each) => (typeof each === "string" ? { value: each, text: each } : each));
  const made = h("select", {}, options.map((each) => h("option", { value: each.value, selected: each.value === value }, each.text)));
  made.onchange = () => act?.(made.value);
  return made;
}

// A path below the folders of the studio: typed, taken from what was found, or chosen by looking around.
export function pathInput(value, { found = [], folders = false, act } = {}) {
  const input = h("input", { type: "text", value: value ?? "", autocomplete: "off", spellcheck: "false" });
  const list = h("datalist", { id: `found-${++fields}` }, found.map((each) => h("option", { value: each })));
  input.setAttribute("list", list.id);
  input.onchange = () => act?.(input.value);
  const look = h("button", { type: "button", class: "quiet", title: word("browse"), "aria-label": word("browse") }, icon("folder"));
  look.onclick = async () => {
    const chosen = await browse(input.value, folders);
    if (chosen !== null) { input.value = chosen; input.dispatchEvent(new Event("change")); input.dispatchEvent(new Event("input")); }
  };
  return { input, around: () => h("div", { class: "with-button" }, input, look, list) };
}

function dialog(title, body, buttons) {
  const box = document.getElementById("dialog");
  return new Promise((resolve) => {
    const end = (value) => { box.close(); resolve(value); };
    box.oncancel = () => resolve(null);
    box.setAttribute("aria-label", title);
    box.replaceChildren(h("h2", {}, title), body(end), h("div", { class: "row end" }, buttons(end)));
    box.showModal();
  });
}

export const confirm = (title, text, action, more) => dialog(title, () => h("div", {}, h("p", {}, text), more), (end) => [
  button(word("cancel"), () => end(false)), button(action, () => end(true), "danger"),
]);

const browse = (start, folders) => dialog(word("browse"), (end) => {
  const box = h("div", { class: "browser" });
  const open = async (path) => {
    const found = await query("files", { path }).catch(() => query("files", { path: "." }));
    const line = (name, act, symbol) => h("button", { type: "button", onclick: act }, icon(symbol), name);
    box.replaceChildren(
      h("div", { class: "here" }, h("code", {}, found.path), folders && button(word("chooseFolder"), () => end(found.path), "primary")),
      found.above === null ? "" : line("..", () => open(found.above), "up"),
      ...found.roots.filter((root) => root !== found.path).slice(0, 8).map((root) => line(root, () => open(root), "folder")),
      ...found.entries.map((each) => line(each.name, () => (each.folder ? open(each.path) : end(each.path)), each.folder ? "folder" : "file")),
    );
  };
  open(start || ".");
  return box;
}, (end) => [button(word("cancel"), () => end(null))]);

// Figures ------------------------------------------------------------------------------------------------------------
const locale = () => (look.language === "zh" ? "zh-CN" : "en-GB");
export const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString(locale()));
export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return size >= 1000 ? whole(value) : value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
}
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (value >= size) return `${(value / size).toFixed(value >= 100 * size ? 0 : 1)} ${unit}`;
  return `${Math.round(value)} B`;
}
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return word("seconds", { count: Math.round(seconds) });
  if (seconds < 3600) return word("minutes", { count: Math.floor(seconds / 60), rest: Math.round(seconds % 60) });
  if (seconds < 172800) return word("hours", { count: Math.floor(seconds / 3600), rest: Math.floor((seconds % 3600) / 60) });
  return word("days", { count: (seconds / 86400).toFixed(1) });
}
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`);
export function when(seconds) {
  if (!seconds) return "–";
  const date = new Date(seconds * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return date.toLocaleString(locale(), today ? { hour: "2-digit", minute: "2-digit" } : { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}
export const readable = (name) => { const text = name.replaceAll("_", " "); return text[0].toUpperCase() + text.slice(1); };
