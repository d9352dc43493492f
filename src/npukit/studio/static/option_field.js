// The field of an option of `npukit train`.
import { h, word } from "./dom.js";
import { field, pathInput, select, textInput } from "./fields.js";
import { readable } from "./format.js";
import { knows } from "./look.js";

// Options that are paths, and what was found for them.
const PATHS = {
  "model.path": "models",
  "model.adapter": "adapters",
  "data.train": "data",
  "data.validation": "data",
  "data.folder": "",
  "training.output": "",
  "training.resume": "",
};
const IN_LINES = ["data.train", "data.validation"]; // one data set a line

// {option, box, text that a search looks in, show()}; set(value) gets what somebody writes.
export function optionField(option, values, found, set) {
  const fallback = ["none", "required"].includes(option.default) ? "" : option.default;
  const { input, around, read } = makeInput(option, fallback, found);
  const show = () => {
    input.value = asText(values[option.key]);
  };
  input[input.tagName === "SELECT" ? "onchange" : "oninput"] = () => set(read());
  if (input.tagName !== "SELECT") input.placeholder = option.required ? word("required") : fallback || word("none");
  show();
  const condition = option.when
    ? `${word("endOfSentence")}${word("onlyWith", { key: option.when.key, value: option.when.values.join(", ") })}`
    : "";
  const label = knows(`option_${option.key}`) ? word(`option_${option.key}`) : readable(option.name);
  const box = field(label, input, option.meaning + condition, { beside: h("code", { class: "key" }, option.key), around });
  return { option, box, show, text: `${option.key} ${label} ${option.meaning}`.toLowerCase() };
}

function makeInput({ key, kind, choices }, fallback, found) {
  if (kind === "choice" || kind === "boolean") {
    const words = kind === "boolean" ? ["true", "false"] : choices;
    const input = select(
      [{ value: "", text: fallback ? word("default", { value: fallback }) : word("none") }, ...words],
      "",
    );
    return { input, read: () => (kind === "boolean" && input.value ? input.value === "true" : input.value) };
  }
  if (key in PATHS) {
    const several = IN_LINES.includes(key);
    const made = pathInput("", { found: found[PATHS[key]], folders: !several, several });
    return { ...made, read: () => (several ? asValue(made.input.value) : made.input.value.trim()) };
  }
  const isLong = kind === "list" || kind === "mapping";
  const numeric = { inputmode: kind === "number" || kind === "integer" ? "decimal" : "text" };
  const input = isLong ? h("textarea", { rows: "1", spellcheck: "false" }) : textInput("", "", numeric);
  return { input, read: () => (isLong ? asValue(input.value) : asNumber(input.value.trim())) };
}

const asNumber = (text) => (text && !Number.isNaN(Number(text)) ? Number(text) : text);

// JSON, or a text in each line.
function asValue(written) {
  const text = written.trim();
  try {
    return JSON.parse(text);
  } catch {
    const lines = text
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean);
    return lines.length > 1 ? lines : text;
  }
}

function asText(value) {
  if (value === undefined || value === null) return "";
  if (typeof value !== "object") return String(value);
  const isPath = (each) => typeof each === "string" || Object.keys(each).join() === "path";
  return Array.isArray(value) && value.every(isPath)
    ? value.map((each) => each.path ?? each).join("\n")
    : JSON.stringify(value);
}
