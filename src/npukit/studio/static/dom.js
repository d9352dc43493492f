// What pages are made of. Text of files, logs and models only ever becomes text nodes.
import { copy } from "./copy.js";
import { word } from "./look.js";
import { icon } from "./markdown.js";

export { icon, word };
export const LIVE = ["queued", "running", "stopping"]; // states of a run that has not ended

// An element with attributes, listeners (onclick) and children; what is null, undefined or false is left out.
export function h(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made[key] = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// A sentence in which `code` stands between backticks.
export const sentence = (text) => text.split(/`([^`]+)`/).map((part, at) => (at % 2 ? h("code", {}, part) : part));

export const page = (title, lead, ...parts) =>
  h(
    "div",
    { class: "page" },
    h("div", { class: "top" }, h("h1", {}, title), lead && h("p", { class: "lead" }, lead)),
    ...parts,
  );
export const card = (title, ...parts) => h("section", { class: "card" }, title && h("h2", {}, title), ...parts);
export const row = (...parts) => h("div", { class: "row" }, ...parts);
export const badge = (state) => h("span", { class: `badge ${state}` }, word(`state_${state}`));
export const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, text);
export const tile = (name, value, more) =>
  h("div", { class: "tile" }, h("span", {}, name), h("b", {}, value), more && h("small", {}, more));
export const pairs = (...entries) =>
  h(
    "dl",
    { class: "pairs" },
    entries.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
export const bullets = (texts, kind = "plain-list") =>
  texts.length
    ? h(
        "ul",
        { class: kind },
        texts.map((text) => h("li", {}, sentence(text))),
      )
    : null;
export const empty = (title, text, ...actions) =>
  h(
    "div",
    { class: "empty" },
    h("p", { class: "strong" }, title),
    h("p", {}, text),
    actions.length > 0 && row(...actions),
  );
export const problem = (...parts) => h("div", { class: "error", role: "alert" }, ...parts);
export const problems = (texts) => (texts.length === 1 ? problem(sentence(texts[0])) : problem(bullets(texts, "")));
export const working = (text = word("working")) => h("div", { class: "working", role: "status" }, h("i"), text);

// A bar that is filled up to a share of one.
export function meter(share, label) {
  const bar = h("i");
  bar.style.width = `${Math.min(100, Math.max(0, 100 * share))}%`;
  const values = { "aria-valuenow": Math.round(100 * share), "aria-valuemin": 0, "aria-valuemax": 100 };
  return h("div", { class: "meter", role: label && "progressbar", "aria-label": label, ...(label ? values : {}) }, bar);
}

// A button; while its work runs it cannot be pressed again, and what goes wrong is said.
export function button(text, act, kind = "") {
  const made = h("button", { type: "button", class: `button ${kind}` }, text);
  made.onclick = async () => {
    made.disabled = true;
    try {
      await act();
    } catch (error) {
      say(error.message, true);
    } finally {
      made.disabled = false;
    }
  };
  return made;
}

// Buttons of which one is pressed: choices are {value, text}.
export const tabs = (label, choices, chosen, act) =>
  h(
    "div",
    { class: "tabs", role: "group", "aria-label": label, hidden: choices.length < 2 },
    choices.map(({ value, text }) =>
      h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => act(value) }, text),
    ),
  );

let silence = 0;
// Say something for a moment, also to a screen reader.
export function say(text, isProblem = false) {
  const box = document.getElementById("said");
  box.replaceChildren(text ? h("span", { class: isProblem ? "wrong" : "" }, text) : "");
  clearTimeout(silence);
  if (text) silence = setTimeout(() => box.replaceChildren(), isProblem ? 9000 : 3500);
}

export function copyButton(text) {
  const made = h(
    "button",
    { type: "button", class: "quiet", title: word("copy"), "aria-label": word("copy") },
    icon("copy"),
  );
  made.onclick = () => copy(text, made);
  return made;
}

// The command that does the same, for whoever wants to learn it; a line breaks between its words.
export function command(line) {
  const words = line.split(" ").flatMap((text, at) => [at ? " " : "", h("span", {}, text)]);
  return h(
    "div",
    { class: "command" },
    h("span", { class: "prompt", "aria-hidden": "true" }, "$"),
    h("code", {}, words),
    copyButton(line),
  );
}

// columns: [{title, cell(row), number, class}]; `act` opens the row that was clicked.
export function table(columns, rows, act) {
  const kind = (column) => `${column.number ? "number " : ""}${column.class ?? ""}`;
  const heading = (column) =>
    h(column.title ? "th" : "td", { class: kind(column), scope: column.title && "col" }, column.title);
  const open = (each) =>
    act &&
    ((event) => {
      if (!event.target.closest("a, input, button")) act(each);
    });
  const line = (each) =>
    h(
      "tr",
      { class: act && "link", onclick: open(each) },
      columns.map((column) => h("td", { class: kind(column), "data-title": column.title }, column.cell(each))),
    );
  const label = columns
    .map((column) => column.title)
    .filter(Boolean)
    .join(", ");
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, h("tr", {}, columns.map(heading))), h("tbody", {}, rows.map(line))),
  );
}
