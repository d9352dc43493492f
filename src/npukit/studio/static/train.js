// Train: a form of every option, the file and the command that it stands for, and what the run would take.
import { api, button, bytes, card, command, copyButton, duration, empty, field, go, h, page, pathInput, problem, query, readable, say, select, session, tag, whole, word } from "./ui.js";
import { knows, look } from "./look.js";
import { MEANINGS } from "./meanings.js";
import { deviceChoices } from "./devices.js";

const KEPT = "npukit-train";
const PATHS = { "model.path": "models", "model.adapter": "adapters", "data.train": "", "data.folder": "", "training.output": "", "training.resume": "" };

const groupOf = (option) => option.key.split(".")[0];

export async function show(main, { from }) {
  const [{ options, first, card: defaultCard }, choices, found] = await Promise.all([api("train/options"), api("machine/choices"), api("models")]);
  const state = { device: choices.devices[0], devices: 1, card: defaultCard, values: {}, ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") };
  if (from) {
    const { details } = await query("run", { id: from });
    Object.assign(state, details);
  }
  const known = Object.fromEntries(options.map((each) => [each.key, each]));
  const boxes = {}; // by key: {box, show()}
  const side = { mistakes: h("div", { "aria-live": "polite" }), plan: h("div", { class: "plan" }), yaml: h("pre", { class: "yaml", tabindex: "0" }), line: h("div"), copy: h("span") };
  let timer = 0, asked = 0;
  const check = async () => {
    sessionStorage.setItem(KEPT, JSON.stringify(state));
    const mine = ++asked;
    const answer = await api("train/check", state).catch((error) => ({ mistakes: [error.message], notes: [], plan: null, yaml: "", command: "" }));
    if (mine === asked) drawSide(side, answer, state);
  };
  const changed = () => { clearTimeout(timer); timer = setTimeout(check, 350); applies(); };
  const applies = () => {
    for (const each of options) {
      const now = each.when && (state.values[each.when.key] ?? known[each.when.key]?.default);
      const fits = !each.when || each.when.values.map(String).includes(String(now));
      boxes[each.key]?.box.classList.toggle("idle", !fits);
      boxes[each.key]?.box.classList.toggle("changed", each.key in state.values);
    }
    filter();
  };
  const set = (key, value) => { if (value === "" || value === undefined) delete state.values[key]; else state.values[key] = value; changed(); };
  for (const each of options) boxes[each.key] = optionField(each, state, set, found);

  const search = h("input", { type: "search", placeholder: word("searchOptions"), "aria-label": word("searchOptions") });
  const only = h("input", { type: "checkbox" });
  const groups = [...new Set(options.map(groupOf))];
  const essentials = card(word("essentials"), h("div", { class: "fields" }, first.map((key) => boxes[key]?.box)));
  const rest = groups.map((group) => ({ group, options: options.filter((each) => groupOf(each) === group && !first.includes(each.key)) })).filter((each) => each.options.length);
  const parts = rest.map(({ group, options: some }) => h("details", { class: "card group" }, h("summary", {}, h("h2", {}, word(`group_${group}`), tag(some.length))), h("div", { class: "fields" }, some.map((each) => boxes[each.key].box))));
  const filter = () => {
    const text = search.value.toLowerCase();
    const narrowed = text || only.checked;
    for (const each of options) boxes[each.key].box.hidden = !!narrowed && !((!text || `${each.key} ${each.name} ${each.meaning} ${MEANINGS[each.meaning] ?? ""}`.toLowerCase().includes(text)) && (!only.checked || each.key in state.values));
    for (const part of [essentials, ...parts]) {
      part.hidden = !!narrowed && ![...part.querySelectorAll(".field")].some((each) => !each.hidden);
      if (part.tagName === "DETAILS" && narrowed) part.open = !part.hidden;
    }
  };
  search.oninput = filter;
  only.onchange = filter;

  const upload = h("input", { type: "file", accept: ".yaml,.yml,.json,.txt", class: "unseen", id: "upload" });
  const uploaded = h("div");
  upload.onchange = async () => {
    const file = upload.files[0];
    upload.value = "";
    if (!file) return;
    if (file.size > 2 ** 20) return say(word("uploadTooLarge"), true);
    try {
      const answer = await api("train/translate", { text: await file.text() });
      if (answer.mistakes.length) return uploaded.replaceChildren(problem(h("ul", {}, answer.mistakes.map((each) => h("li", {}, each)))));
      state.values = answer.values;
      for (const each of options) boxes[each.key].show();
      uploaded.replaceChildren(h("div", { class: "note" }, h("p", {}, word("readAs", { file: file.name, tool: answer.dialect, count: Object.keys(answer.values).length })), answer.notes.length ? h("ul", {}, answer.notes.map((each) => h("li", {}, each))) : ""));
      changed();
    } catch (error) { uploaded.replaceChildren(problem(error.message)); }
  };
  const start = session.read_only ? "" : button(word("startTraining"), async () => {
    const { id } = await api("train/start", state);
    sessionStorage.removeItem(KEPT);
    go("run", { id });
  }, "primary");
  const clear = button(word("startOver"), () => { state.values = {}; for (const each of options) boxes[each.key].show(); uploaded.replaceChildren(); changed(); });
  main.append(page(word("train"), word("trainLead"),
    h("div", { class: "row tools" }, search, h("label", { class: "switch" }, only, h("span", {}, word("onlyChanged"))), h("span", { class: "space" }), h("label", { class: "button", for: "upload" }, word("uploadConfig")), upload, clear), uploaded,
    h("div", { class: "split" }, h("div", {}, essentials, ...parts),
      h("div", { class: "side" }, card(word("where"), deviceChoices(choices, state, changed), side.mistakes, start), card(word("estimate"), side.plan), card(h("span", { class: "with-copy" }, word("fileAndCommand"), side.copy), side.yaml, side.line)))));
  applies();
  check();
}

function optionField(option, state, set, found) {
  const written = () => state.values[option.key];
  const text = (value) => (value === undefined || value === null ? "" : Array.isArray(value) && value.every((each) => typeof each === "string" || Object.keys(each).join() === "path") ? value.map((each) => each.path ?? each).join("\n") : typeof value === "object" ? JSON.stringify(value) : String(value));
  const fallback = ["none", "required"].includes(option.default) ? "" : option.default;
  let input, around, read;
  if (option.kind === "choice" || option.kind === "boolean") {
    const words = option.kind === "boolean" ? ["true", "false"] : option.choices;
    input = select([{ value: "", text: fallback ? word("default", { value: fallback }) : word("none") }, ...words.map((each) => ({ value: each, text: each }))], text(written()));
    read = () => (option.kind === "boolean" && input.value ? input.value === "true" : input.value);
    input.onchange = () => set(option.key, read());
  } else if (option.key in PATHS && option.key !== "data.train") {
    const made = pathInput(text(written()), { found: found[PATHS[option.key]] ?? [], folders: true, act: (value) => set(option.key, value.trim()) });
    ({ input, around } = made);
    input.oninput = () => set(option.key, input.value.trim());
  } else {
    const long = ["list", "mapping"].includes(option.kind) || option.key.startsWith("data.train");
    input = h(long ? "textarea" : "input", { ...(long ? { rows: "1" } : { type: "text", inputmode: ["number", "integer"].includes(option.kind) ? "decimal" : "text" }), autocomplete: "off", spellcheck: "false" });
    read = () => {
      const value = input.value.trim();
      if (value && !Number.isNaN(Number(value))) return Number(value);
      if (!long) return value;
      try { return JSON.parse(value); } catch { return value.includes("\n") ? value.split("\n").map((each) => each.trim()).filter(Boolean) : value; }
    };
    input.oninput = () => set(option.key, read());
  }
  if (input.tagName !== "SELECT") input.placeholder = option.required ? word("required") : fallback || word("none");
  const show = () => { input.value = text(written()); };
  show();
  const beside = h("code", { class: "key" }, option.key);
  const help = [(look.language === "zh" && MEANINGS[option.meaning]) || option.meaning, option.when ? `${word("stop_sentence")}${word("onlyWith", { key: option.when.key, value: option.when.values.join(", ") })}` : ""].join("");
  return { box: field(knows(`option_${option.key}`) ? word(`option_${option.key}`) : readable(option.name), input, help, { beside, around }), show };
}

function drawSide(side, answer, state) {
  side.yaml.textContent = answer.yaml.trim() && answer.yaml.trim() !== "{}" ? answer.yaml.trim() : word("nothingChosen");
  side.copy.replaceChildren(copyButton(answer.yaml));
  side.line.replaceChildren(answer.command ? command(answer.command) : "");
  const untouched = !Object.keys(state.values).length;
  side.mistakes.replaceChildren(answer.mistakes.length && !untouched ? problem(h("ul", {}, answer.mistakes.map((each) => h("li", {}, each)))) : "", answer.notes.length ? h("ul", { class: "plain-list" }, answer.notes.map((each) => h("li", {}, each))) : "");
  const plan = answer.plan;
  if (!plan) return side.plan.replaceChildren(untouched ? empty(word("noPlan"), word("noPlanHint")) : h("p", { class: "soft" }, word("planWaits")));
  const line = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  const total = plan.memory?.total;
  side.plan.replaceChildren(
    plan.fits === null ? "" : h("p", {}, h("span", { class: `badge ${plan.fits ? "finished" : "failed"}` }, word(plan.fits ? "fits" : "doesNotFit", { card: plan.card }))),
    h("dl", { class: "pairs" },
      total ? line(word("memoryPerCard"), plan.usable ? word("ofTotal", { value: bytes(total), total: bytes(plan.usable) }) : bytes(total)) : null,
      plan.parameters ? line(word("parameters"), whole(plan.parameters)) : null, plan.trained ? line(word("trained"), whole(plan.trained)) : null,
      plan.rows ? line(word("rows"), `${plan.rows_are_exact ? "" : "≈ "}${whole(plan.rows)}`) : null, plan.steps ? line(word("steps"), whole(plan.steps)) : null, line(word("tokensPerStep"), whole(plan.tokens_per_step)),
      plan.days ? line(word("timeOn", { card: `${plan.devices} × ${plan.card}` }), plan.days.map((each) => duration(each * 86400)).filter((each, at, all) => !at || each !== all[0]).join(" – ")) : null));
}
