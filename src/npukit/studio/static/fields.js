// Fields of forms.
import { button, h, icon, word } from "./dom.js";
import { dialog } from "./dialog.js";
import { query } from "./server.js";

let count = 0;

// A labelled input: `beside` stands next to the label, `around` wraps the input.
export function field(label, input, help, { beside, around, kind = "" } = {}) {
  input.id ||= `field-${++count}`;
  const hint = help && h("p", { class: "help", id: `${input.id}-help` }, help);
  if (hint) input.setAttribute("aria-describedby", hint.id);
  return h("div", { class: `field ${kind}` }, h("label", { for: input.id }, label, beside), around ?? input, hint);
}

export const checkbox = (label, input) => h("label", { class: "switch" }, input, h("span", {}, label));

// choices: texts, or {value, text}
export function select(choices, value, act) {
  const options = choices.map((each) => (typeof each === "string" ? { value: each, text: each } : each));
  const made = h(
    "select",
    {},
    options.map((each) => h("option", { value: each.value, selected: each.value === value }, each.text)),
  );
  made.onchange = () => act?.(made.value);
  return made;
}

export const textInput = (value = "", placeholder = "", more = {}) =>
  h("input", { type: "text", value: value ?? "", placeholder, autocomplete: "off", spellcheck: "false", ...more });

// A path below the folders of the studio: typed, taken from what was `found`, or chosen by looking around. With
// `several` a textarea has a path in each line. It behaves as its input; `around` is the whole of it.
export function pathInput(value, { found = [], folders = false, several = false } = {}) {
  const input = several ? h("textarea", { rows: "1", spellcheck: "false" }, value ?? "") : textInput(value);
  const list = h(
    "datalist",
    { id: `found-${++count}` },
    found.map((each) => h("option", { value: each })),
  );
  if (!several) input.setAttribute("list", list.id);
  const browse = h(
    "button",
    { type: "button", class: "quiet", title: word("browse"), "aria-label": word("browse") },
    icon("folder"),
  );
  browse.onclick = async () => {
    const chosen = await lookAround(several ? "" : input.value, folders);
    if (chosen === null) return;
    input.value = several && input.value.trim() ? `${input.value.trimEnd()}\n${chosen}` : chosen;
    input.dispatchEvent(new Event("input"));
    input.dispatchEvent(new Event("change"));
  };
  return { input, around: h("div", { class: "with-button" }, input, browse, list) };
}

const lookAround = (start, folders) =>
  dialog(
    word("browse"),
    (end) => {
      const box = h("div", { class: "browser" });
      const line = (name, act, symbol) => h("button", { type: "button", onclick: act }, icon(symbol), name);
      const open = async (path) => {
        const {
          path: here,
          above,
          roots,
          entries,
        } = await query("files", { path }).catch(() => query("files", { path: "." }));
        box.replaceChildren(
          h(
            "div",
            { class: "here" },
            h("code", {}, here),
            folders && button(word("chooseFolder"), () => end(here), "primary"),
          ),
          above === null ? "" : line("..", () => open(above), "up"),
          ...roots.filter((root) => root !== here).map((root) => line(root, () => open(root), "folder")),
          ...entries.map(({ name, path: below, folder }) =>
            line(name, () => (folder ? open(below) : end(below)), folder ? "folder" : "file"),
          ),
        );
      };
      open(start || ".");
      return box;
    },
    (end) => [button(word("cancel"), () => end(null))],
  );
