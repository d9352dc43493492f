// Eval, export, precision, performance: the options of a verb as a form, its runs and what they found.
import { api, badge, button, card, command, empty, every, field, go, h, page, pathInput, row, select, session, table, tag, when, word } from "./ui.js";

const VERBS = { eval: ["eval", "infer"], export: ["export"], precision: ["precision compare", "precision bisect", "precision check", "precision weights", "precision ranks", "precision ops", "precision env"], performance: ["advise", "tune"] };

export async function show(main, values, name) {
  const [forms, found, choices] = await Promise.all([api("forms"), api("models"), api("machine/choices")]);
  const verbs = VERBS[name].filter((each) => each in forms);
  let verb = verbs.includes(values.verb) ? values.verb : verbs[0];
  const tabs = h("div", { class: "tabs", role: "group", "aria-label": word(name), hidden: verbs.length < 2 });
  const body = h("div"), past = h("div");
  const draw = () => {
    tabs.replaceChildren(...verbs.map((each) => h("button", { type: "button", "aria-pressed": String(each === verb), onclick: () => { verb = each; draw(); } }, word(`form_${each.replaceAll(" ", "_")}`))));
    body.replaceChildren(form(verb, forms[verb], { ...values }, found, choices, (id) => go("run", { id })));
  };
  draw();
  main.append(page(word(name), word(`${name}Lead`), tabs, body, past));
  let drawn = "";
  every(3000, async () => {
    const mine = (await api("runs")).filter((each) => VERBS[name].includes(each.kind));
    if (JSON.stringify(mine) === drawn) return;
    drawn = JSON.stringify(mine);
    past.replaceChildren(card(word("results"), mine.length ? table([
      { title: word("run"), cell: (each) => h("a", { href: `#/run?id=${encodeURIComponent(each.id)}` }, each.title || each.kind), class: "wide" }, { title: word("state"), cell: (each) => badge(each.state) }, { title: word("started"), cell: (each) => when(each.created), number: true },
    ], mine.slice(0, 50), (each) => go("run", { id: each.id })) : empty(word("noResults"), word("noResultsHint"))));
  });
}

// The options of a verb as fields, the command that they stand for, and a button that starts it.
export function form(verb, given, values, found, choices, start, text) {
  const line = h("div");
  const clean = {};
  const tell = () => {
    const words = given.options.flatMap((each) => {
      const value = clean[each.name];
      if (value === undefined || value === "" || value === each.default) return each.required ? [each.name.toUpperCase()] : [];
      if (each.kind === "switch") return value ? [each.flag] : each.off.slice(0, 1);
      return [value].flat().flatMap((one) => (each.flag ? [each.flag, one] : [one]));
    });
    line.replaceChildren(command(["npukit", verb, ...words].map((word) => (/[^\w@%+=:,./-]/.test(word) && word !== verb && !verb.startsWith(word) ? `'${word}'` : word)).join(" ")));
  };
  const make = (option) => {
    const set = (value) => { clean[option.name] = value; tell(); };
    let input, around;
    if (values[option.name]) clean[option.name] = option.list ? [values[option.name]] : values[option.name];
    if (option.kind === "switch") {
      input = h("input", { type: "checkbox", checked: option.default === true });
      input.onchange = () => set(input.checked);
      return h("div", { class: "field" }, h("label", { class: "switch" }, input, h("span", {}, option.label)), h("p", { class: "help" }, option.meaning));
    }
    if (option.kind === "choice" || option.name === "card") {
      const words = option.name === "card" ? choices.cards : option.name === "device" ? ["auto", ...choices.devices] : option.choices;
      input = select(words.map((value) => ({ value, text: option.name === "device" ? word(`device_${value}`) : value })), option.default ?? "", set);
    } else if (option.kind === "path") {
      const from = option.name === "model" ? [...found.models, ...found.adapters] : option.name === "adapter" ? found.adapters : [];
      ({ input, around } = pathInput(values[option.name] ?? "", { found: from, folders: true }));
      input.oninput = () => set(option.list ? input.value.split(",").map((each) => each.trim()).filter(Boolean) : input.value.trim());
    } else {
      input = h("input", { type: "text", inputmode: option.kind === "number" ? "decimal" : "text", value: values[option.name] ?? "", placeholder: option.default ?? (option.kind === "command" ? "python train.py --steps 3" : ""), spellcheck: "false" });
      input.oninput = () => { const value = input.value.trim(); const number = option.kind === "number" && value && !Number.isNaN(Number(value)) ? Number(value) : value; set(option.list && value ? value.split(",").map((each) => each.trim()) : number); };
    }
    if (option.required) input.required = true;
    return field(option.label, input, option.meaning || (option.kind === "command" ? word("commandHint") : ""), { around, beside: option.flag ? h("code", { class: "key" }, option.flag) : option.required ? tag(word("required")) : null });
  };
  const inputs = given.options.map((option) => [option, make(option)]);
  const first = inputs.filter(([option]) => !option.flag || ["output", "device", "adapter"].includes(option.name)), rest = inputs.filter((each) => !first.includes(each));
  tell();
  return card(given.summary, h("div", { class: "fields" }, first.map(([, input]) => input)), rest.length ? h("details", {}, h("summary", {}, word("moreOptions", { count: rest.length })), h("div", { class: "fields" }, rest.map(([, input]) => input))) : "",
    line, session.read_only ? "" : row(button(text ?? word("start"), async () => { const { id } = await api("forms/start", { verb, values: clean }); start(id); }, "primary")));
}
