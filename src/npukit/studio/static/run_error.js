// The first error of a run, explained as `npukit explain` does.
import { bullets, command, h, icon, sentence, tag, word } from "./dom.js";
import { query } from "./server.js";

export async function runError({ id, state, foreign }) {
  if (foreign || !["failed", "killed"].includes(state)) return [];
  const { explanations, line } = await query("run/explain", { id });
  const title = h("h2", {}, icon("warn"), word(state === "killed" ? "runKilled" : "runFailed"));
  const parts = explanations.length ? known(explanations) : unknown(state, line);
  return [h("section", { class: "card wrong", role: "alert" }, title, parts)];
}

const list = (title, sentences) => sentences.length > 0 && h("div", {}, h("h3", {}, title), bullets(sentences, ""));

const known = ([first, ...others]) => [
  h("p", {}, tag(first.code), " ", h("b", {}, sentence(first.meaning))),
  h("pre", { class: "quote" }, first.rank === null ? "" : `${word("rank")} ${first.rank}: `, first.line),
  list(word("causes"), first.causes),
  list(word("remedies"), first.remedies),
  others.map((each) => h("p", { class: "soft" }, tag(each.code), " ", sentence(each.meaning))),
  command(`npukit explain ${first.code}`),
];

const unknown = (state, line) => [
  h("p", {}, word(state === "killed" ? "killedHint" : "unknownError")),
  line && h("pre", { class: "quote" }, line),
];
