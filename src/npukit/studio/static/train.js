// Train: a form of every option, the file and the command that it stands for, and what the run would take.
import { button, card, command, copyButton, h, page, problems, bullets, tag, word } from "./dom.js";
import { checkbox } from "./fields.js";
import { deviceChoices } from "./devices.js";
import { estimate } from "./estimate.js";
import { optionField } from "./option_field.js";
import { go } from "./pages.js";
import { api, query, session } from "./server.js";
import { uploadButton } from "./upload.js";

const KEPT = "npukit-train";
const PAUSE = 350; // milliseconds without a key before the form is checked
const groupOf = ({ key }) => key.split(".")[0];

export async function show(main, { from }) {
  const [{ options, first, card: defaultCard }, choices, found] = await Promise.all([
    api("train/options"),
    api("machine/choices"),
    api("models"),
  ]);
  const state = {
    device: choices.devices[0],
    devices: 1,
    card: defaultCard,
    values: {},
    ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}"),
  };
  if (from) Object.assign(state, (await query("run", { id: from })).details);
  const fields = options.map((option) => optionField(option, state.values, found, (value) => set(option.key, value)));
  const side = sidePanel();
  const form = optionForm(fields, first, state);
  let timer = 0;
  let asked = 0;
  const check = async () => {
    sessionStorage.setItem(KEPT, JSON.stringify(state));
    const mine = ++asked; // answers to older questions are dropped
    const answer = await api("train/check", state).catch((error) => ({
      mistakes: [error.message],
      notes: [],
      plan: null,
      yaml: "",
      command: "",
    }));
    if (mine === asked) side.draw(answer, state, replace);
  };
  const changed = () => {
    form.refresh();
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE);
  };
  const set = (key, value) => {
    if (value === "" || value === null) delete state.values[key];
    else state.values[key] = value;
    changed();
  };
  const replace = (values, devices = state.devices) => {
    for (const key of Object.keys(state.values)) delete state.values[key];
    Object.assign(state.values, values);
    state.devices = devices;
    for (const each of [...fields, where]) each.show();
    changed();
  };
  const where = deviceChoices(choices, state, changed);
  const upload = uploadButton(replace);
  const clear = button(word("startOver"), () => {
    upload.note.replaceChildren();
    replace({});
  });
  const start = button(
    word("startTraining"),
    async () => {
      const { id } = await api("train/start", state);
      clearTimeout(timer); // a check would keep the form for another training
      sessionStorage.removeItem(KEPT);
      go("run", { id });
    },
    "primary",
  );
  main.append(
    page(
      word("train"),
      word("trainLead"),
      h("div", { class: "row tools" }, form.tools, h("span", { class: "space" }), upload.parts, clear),
      upload.note,
      h(
        "div",
        { class: "split" },
        h("div", {}, form.parts),
        h(
          "div",
          { class: "side" },
          card(word("where"), where.box, side.mistakes, !session.read_only && start),
          card(word("estimate"), side.plan),
          card(h("span", { class: "with-copy" }, word("fileAndCommand"), side.copy), side.yaml, side.line),
        ),
      ),
    ),
  );
  changed();
}

// The fields in groups, those that most people set first; narrowed by words, or to what was changed.
function optionForm(fields, first, state) {
  const search = h("input", {
    type: "search",
    placeholder: word("searchOptions"),
    "aria-label": word("searchOptions"),
  });
  const only = h("input", { type: "checkbox" });
  const essentials = card(
    word("essentials"),
    h(
      "div",
      { class: "fields" },
      first.map((key) => fields.find((each) => each.option.key === key)?.box),
    ),
  );
  const rest = Map.groupBy(
    fields.filter((each) => !first.includes(each.option.key)),
    (each) => groupOf(each.option),
  );
  const groups = [...rest].map(([group, some]) =>
    h(
      "details",
      { class: "card group" },
      h("summary", {}, h("h2", {}, word(`group_${group}`), tag(some.length))),
      h(
        "div",
        { class: "fields" },
        some.map((each) => each.box),
      ),
    ),
  );
  const defaults = Object.fromEntries(fields.map(({ option }) => [option.key, option.default]));
  const applies = ({ when }) =>
    !when || when.values.map(String).includes(String(state.values[when.key] ?? defaults[when.key]));
  const refresh = () => {
    const words = search.value.toLowerCase();
    const isNarrowed = words !== "" || only.checked;
    for (const { option, box, text } of fields) {
      const isChanged = option.key in state.values;
      box.classList.toggle("idle", !applies(option));
      box.classList.toggle("changed", isChanged);
      box.hidden = !text.includes(words) || (only.checked && !isChanged);
    }
    for (const part of [essentials, ...groups]) {
      part.hidden = isNarrowed && !part.querySelector(".field:not([hidden])");
      if (isNarrowed && part !== essentials) part.open = !part.hidden;
    }
  };
  search.oninput = refresh;
  only.onchange = refresh;
  return { tools: [search, checkbox(word("onlyChanged"), only)], parts: [essentials, ...groups], refresh };
}

// What stands beside the form: mistakes, the estimate, the file and the command.
function sidePanel() {
  const side = {
    mistakes: h("div", { "aria-live": "polite" }),
    plan: h("div", { class: "plan" }),
    yaml: h("pre", { class: "yaml", tabindex: "0" }),
    line: h("div"),
    copy: h("span"),
  };
  const draw = (answer, state, replace) => {
    const isUntouched = !Object.keys(state.values).length;
    side.yaml.textContent = isUntouched ? word("nothingChosen") : answer.yaml.trim();
    side.copy.replaceChildren(copyButton(answer.yaml));
    side.line.replaceChildren(answer.command ? command(answer.command) : "");
    side.mistakes.replaceChildren(
      ...[!isUntouched && answer.mistakes.length > 0 && problems(answer.mistakes), bullets(answer.notes)].filter(
        Boolean,
      ),
    );
    side.plan.replaceChildren(...estimate(answer.plan, state, isUntouched, replace));
  };
  return { ...side, draw };
}
