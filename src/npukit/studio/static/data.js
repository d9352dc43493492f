// Data: rows as the model will see them: their tokens, and which of them count in the loss.
import { api, button, card, empty, field, h, page, pathInput, percent, row, say, select, table, tag, whole, word, working } from "./ui.js";
import { bars } from "./chart.js";

const KEPT = "npukit-data";

export async function show(main, values) {
  const found = await api("models");
  const state = { model: "", data: "", template: "", task: "sft", cutoff: 2048, tokens: "npukit", page: 0, ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}"), ...values };
  const model = pathInput(state.model, { found: [...found.models, ...found.adapters], folders: true }), data = pathInput(state.data);
  const template = h("input", { type: "text", value: state.template, placeholder: word("modelsOwn"), spellcheck: "false" });
  const cutoff = h("input", { type: "number", min: "1", value: state.cutoff });
  const task = select(["sft", "pt", "dpo", "kto", "rm"].map((value) => ({ value, text: word(`task_${value}`) })), state.task);
  const tokens = select([{ value: "npukit", text: "npukit" }, { value: "llama_factory", text: "LLaMA-Factory" }, { value: "ms_swift", text: "ms-swift" }], state.tokens);
  const result = h("div", {}, empty(word("noData"), word("noDataHint")));
  const look = async (number = 0) => {
    Object.assign(state, { model: model.input.value.trim(), data: data.input.value.trim(), template: template.value.trim(), cutoff: Number(cutoff.value) || 2048, task: task.value, tokens: tokens.value, page: number });
    sessionStorage.setItem(KEPT, JSON.stringify(state));
    result.replaceChildren(working(word("tokenising")));
    try { draw(result, await api("data/preview", state), state, look); } catch (error) { result.replaceChildren(); throw error; }
  };
  const act = button(word("look"), () => look(0), "primary");
  main.append(page(word("data"), word("dataLead"), card("", h("div", { class: "fields" },
    field(word("model"), model.input, word("modelForTokens"), { around: model.around }), field(word("dataset"), data.input, word("datasetHint"), { around: data.around }), field(word("template"), template), field(word("task"), task), field(word("cutoff"), cutoff), field(word("tokenStyle"), tokens)), row(act)), result));
  if (state.model && state.data) look(Number(state.page) || 0).catch((error) => say(error.message, true));
}

function draw(box, found, state, look) {
  const tile = (name, value) => h("div", { class: "tile" }, h("span", {}, name), h("b", {}, value));
  const histogram = h("div");
  if (found.histogram.length) bars(histogram, found.histogram, word("tokensPerRow"));
  const turn = (number, text) => (number >= 0 && number < found.pages ? button(text, () => look(number)) : "");
  box.replaceChildren(
    card("", h("div", { class: "tiles" }, tile(word("rowsLookedAt"), whole(found.looked_at)), tile(word("usableRows"), whole(found.usable)), tile(word("badRows"), whole(found.bad_count)), tile(word("cutRows"), whole(found.cut)), tile(word("countedTokens"), percent(found.total ? found.counted / found.total : 0)), tile(word("template"), found.template)), histogram),
    found.bad.length ? card(word("badRows"), table([{ title: word("place"), cell: (each) => each.place }, { title: word("why"), cell: (each) => each.why }], found.bad)) : "",
    card(word("rowsAsTokens"), h("p", { class: "soft" }, h("span", { class: "token counts" }, word("counts")), " ", word("countsHint"), " ", h("span", { class: "token" }, word("masked")), " ", word("maskedHint")), ...found.rows.map(tokenRow), h("div", { class: "row" }, turn(state.page - 1, word("previous")), turn(state.page + 1, word("next")))));
}

const tokenRow = (each) => h("article", { class: "tokens" }, h("p", { class: "soft small" }, each.place, " · ", word("tokenCount", { count: whole(each.length), counted: whole(each.counted) }), each.cut && [" ", tag(word("wasCut"), "bad")]),
  h("div", {}, each.pieces.map((piece) => (piece.id === null ? h("hr") : h("span", { class: `token ${piece.counts ? "counts" : ""}`, title: word("tokenId", { id: piece.id }) }, piece.text.replaceAll("\n", "↵\n")))), each.more ? h("span", { class: "soft" }, ` … ${word("moreTokens", { count: whole(each.more) })}`) : null));
