// The options of a verb as fields, the command that they stand for, and a button that starts it.
import { button, card, command, h, row, sentence, tag, word } from "./dom.js";
import { checkbox, field, pathInput, select, textInput } from "./fields.js";
import { knows } from "./look.js";
import { api, session } from "./server.js";

const FIRST = ["output", "device", "adapter"]; // options that stand beside the arguments; the others are folded away

// `values` fill fields, `found` are models and data to choose from, started(id) gets the new run.
export function verbForm(verb, form, { values, found, choices, started, action = word("start") }) {
  const given = {};
  const line = h("div");
  const tell = () => line.replaceChildren(command(commandOf(verb, form.options, given)));
  const fields = form.options.map((option) => {
    const { name, list } = option;
    if (values[name]) given[name] = list ? [values[name]] : values[name];
    const box = makeField(option, values[name] ?? "", { found, choices }, (value) => {
      given[name] = value;
      tell();
    });
    return { box, isFirst: !option.flag || FIRST.includes(name) };
  });
  const boxes = (isFirst) =>
    h(
      "div",
      { class: "fields" },
      fields.filter((each) => each.isFirst === isFirst).map((each) => each.box),
    );
  const rest = fields.filter((each) => !each.isFirst).length;
  const start = async () => started((await api("forms/start", { verb, values: given })).id);
  tell();
  return card(
    form.summary,
    boxes(true),
    rest > 0 && h("details", {}, h("summary", {}, word("moreOptions", { count: rest })), boxes(false)),
    line,
    !session.read_only && row(button(action, start, "primary")),
  );
}

// As the server writes it, see forms.py; an argument that is missing is shown in capitals.
function commandOf(verb, options, given) {
  const words = options.flatMap(({ name, flag, off, kind, required, default: usual }) => {
    const value = given[name];
    if (value === undefined || value === "" || value === usual || value.length === 0)
      return required ? [name.toUpperCase()] : [];
    if (kind === "switch") return value ? [flag] : off.slice(0, 1);
    return [value].flat().flatMap((each) => (flag ? [flag, each] : [each]));
  });
  const quoted = (text) => (/[^\w@%+=:,./-]/.test(text) ? `'${text}'` : text);
  const last = options.some(({ kind, name }) => kind === "command" && given[name]) ? words.pop() : null;
  return ["npukit", verb, ...words.map(quoted), ...(last ? [last] : [])].join(" ");
}

function makeField(option, value, { found, choices }, set) {
  const { name, flag, kind, required, list } = option;
  const label = knows(`label_${name}`) ? word(`label_${name}`) : option.label;
  const help = option.meaning ? sentence(option.meaning) : kind === "command" && word("commandHint");
  if (kind === "switch") {
    const input = h("input", {
      type: "checkbox",
      checked: option.default === true,
      onchange: () => set(input.checked),
    });
    return h("div", { class: "field" }, checkbox(label, input), help && h("p", { class: "help" }, help));
  }
  const { input, around } = makeInput(option, value, found, choices);
  const read = (text) => {
    if (list)
      return text
        .split(",")
        .map((each) => each.trim())
        .filter(Boolean);
    return kind === "number" && text && !Number.isNaN(Number(text)) ? Number(text) : text;
  };
  input[input.tagName === "SELECT" ? "onchange" : "oninput"] = () => set(read(input.value.trim()));
  input.required = required;
  return field(label, input, help, {
    around,
    beside: flag ? h("code", { class: "key" }, flag) : required && tag(word("required")),
  });
}

function makeInput({ name, kind, choices: own, default: usual }, value, found, choices) {
  const nothing = usual === null ? [{ value: "", text: word("none") }] : [];
  if (name === "device")
    return {
      input: select(
        ["auto", ...choices.devices].map((each) => ({ value: each, text: word(`device_${each}`) })),
        usual,
      ),
    };
  if (name === "card") return { input: select([...nothing, ...choices.cards], usual ?? "") };
  if (kind === "choice") return { input: select([...nothing, ...own], usual ?? "") };
  if (kind === "path") return pathInput(value, { found: suggestions(name, found), folders: true });
  const placeholder = usual ?? (kind === "command" ? "python train.py --steps 3" : "");
  return { input: textInput(value, placeholder, { inputmode: kind === "number" ? "decimal" : "text" }) };
}

const suggestions = (name, { models, adapters, data }) =>
  ({ model: [...models, ...adapters], adapter: adapters, data })[name] ?? [];
