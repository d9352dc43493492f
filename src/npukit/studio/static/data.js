// Data: rows as the model will see them: their tokens, which of them count in the loss, and their pictures.
import { button, card, empty, h, page, row, say, table, tag, tile, word, working } from "./dom.js";
import { field, pathInput, select, textInput } from "./fields.js";
import { percent, whole } from "./format.js";
import { histogram } from "./histogram.js";
import { api } from "./server.js";

const KEPT = "npukit-data";
const TASKS = ["sft", "pt", "dpo", "kto", "rm"];
const STYLES = { npukit: "npukit", llama_factory: "LLaMA-Factory", ms_swift: "ms-swift" };
const FIRST = { model: "", data: "", template: "", task: "sft", cutoff: 2048, tokens: "npukit", page: 0 };

export async function show(main, values) {
  const found = await api("models");
  const state = { ...FIRST, ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}"), ...values };
  const model = pathInput(state.model, { found: [...found.models, ...found.adapters], folders: true });
  const data = pathInput(state.data, { found: found.data });
  const template = textInput(state.template, word("modelsOwn"));
  const cutoff = h("input", { type: "number", min: "1", value: state.cutoff });
  const task = select(
    TASKS.map((value) => ({ value, text: word(`task_${value}`) })),
    state.task,
  );
  const tokens = select(
    Object.entries(STYLES).map(([value, text]) => ({ value, text })),
    state.tokens,
  );
  const result = h("div", {}, empty(word("noData"), word("noDataHint")));
  const look = async (number) => {
    const texts = { model: model.input.value, data: data.input.value, template: template.value };
    for (const [name, text] of Object.entries(texts)) state[name] = text.trim();
    Object.assign(state, {
      cutoff: Number(cutoff.value) || FIRST.cutoff,
      task: task.value,
      tokens: tokens.value,
      page: number,
    });
    sessionStorage.setItem(KEPT, JSON.stringify(state));
    result.replaceChildren(working(word("tokenising")));
    try {
      result.replaceChildren(...preview(await api("data/preview", state), number, look));
    } catch (error) {
      result.replaceChildren();
      throw error;
    }
  };
  main.append(
    page(
      word("data"),
      word("dataLead"),
      card(
        "",
        h(
          "div",
          { class: "fields" },
          field(word("model"), model.input, word("modelForTokens"), { around: model.around }),
          field(word("dataset"), data.input, word("datasetHint"), { around: data.around }),
          field(word("template"), template),
          field(word("task"), task),
          field(word("cutoff"), cutoff),
          field(word("tokenStyle"), tokens),
        ),
        row(button(word("look"), () => look(0), "primary")),
      ),
      result,
    ),
  );
  if (state.model && state.data) look(Number(state.page) || 0).catch((error) => say(error.message, true));
}

function preview(found, number, look) {
  const turn = (to, text) => (to >= 0 && to < found.pages ? button(text, () => look(to)) : "");
  const bad = [
    { title: word("place"), cell: (each) => each.place },
    { title: word("why"), cell: (each) => [each.why, pictures(each.pictures)] },
  ];
  return [
    card(
      "",
      h(
        "div",
        { class: "tiles" },
        tile(word("rowsLookedAt"), whole(found.looked_at)),
        tile(word("usableRows"), whole(found.usable)),
        tile(word("badRows"), whole(found.bad_count)),
        tile(word("cutRows"), whole(found.cut)),
        tile(word("countedTokens"), percent(found.total ? found.counted / found.total : 0)),
        tile(word("template"), found.template || word("modelsOwn")),
      ),
      found.histogram.length > 0 && histogram(found.histogram, word("tokensPerRow")),
    ),
    found.bad.length ? card(word("badRows"), table(bad, found.bad)) : "",
    found.rows.length
      ? card(
          word("rowsAsTokens"),
          key(),
          ...found.rows.map(tokens),
          row(turn(number - 1, word("previous")), turn(number + 1, word("next"))),
        )
      : "",
  ];
}

const key = () =>
  h(
    "p",
    { class: "soft" },
    h("span", { class: "token counts" }, word("counts")),
    " ",
    word("countsHint"),
    " ",
    h("span", { class: "token" }, word("masked")),
    " ",
    word("maskedHint"),
  );

function tokens({ place, length, counted, cut, pieces, more, pictures: files }) {
  const piece = ({ text, id, counts }) =>
    id === null
      ? h("hr")
      : h(
          "span",
          { class: `token ${counts ? "counts" : ""}`, title: word("tokenId", { id }) },
          text.replaceAll("\n", "↵\n"),
        );
  return h(
    "article",
    { class: "tokens" },
    h(
      "p",
      { class: "soft small" },
      place,
      " · ",
      word("tokenCount", { count: whole(length), counted: whole(counted) }),
      cut && [" ", tag(word("wasCut"), "bad")],
    ),
    pictures(files),
    h(
      "div",
      {},
      pieces.map(piece),
      more > 0 && h("span", { class: "soft" }, ` … ${word("moreTokens", { count: whole(more) })}`),
    ),
  );
}

const pictures = (files) =>
  files.length > 0 &&
  h(
    "div",
    { class: "pictures" },
    files.map((path) =>
      h("img", { src: `api/data/picture?${new URLSearchParams({ path })}`, alt: path, title: path, loading: "lazy" }),
    ),
  );
