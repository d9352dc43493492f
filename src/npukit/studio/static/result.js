// What a verb found, for people: a table where it is one, both loss curves of a verification, a page where one was written.
import { bytes, card, figure, h, problem, query, readable, table, whole, word } from "./ui.js";
import { chart, legend } from "./chart.js";

export async function drawResult(box, found) {
  if (!["finished", "failed"].includes(found.state)) return box.replaceChildren();
  const { data, text } = await query("run/result", { id: found.id });
  const draw = { verify: verification, eval: evaluation }[found.kind] ?? plain;
  const parts = data && typeof data === "object" ? draw(data) : text ? [card(word("result"), h("pre", { class: "log" }, text))] : [];
  if (found.has_page) parts.push(card(word("report"), h("iframe", { class: "report", src: `api/run/report?id=${encodeURIComponent(found.id)}`, sandbox: "allow-scripts", title: word("report") })));
  box.replaceChildren(...parts);
}

export function verification(data) {
  const boxes = (data.losses ?? []).filter((each) => each.before.length > 1).map((each) => {
    const series = [{ name: word("before"), kind: "c1", steps: each.before.map((_, at) => at + 1), values: each.before }, { name: word("after"), kind: "c0 dashed", steps: each.after.map((_, at) => at + 1), values: each.after }];
    const box = h("div", { class: "plot" });
    requestAnimationFrame(() => chart(box, { series, title: each.name, xTitle: word("number") }));
    return card(readable(each.name), legend(series), box);
  });
  const runs = [["before", data.before], ["after", data.after]];
  return [
    card(word(data.same ? "verifiedSame" : "verifiedDifferent"),
      h("p", {}, word(data.same ? "sameHint" : "differentHint", { tolerance: data.tolerance })),
      data.divergence ? problem(`${readable(data.divergence.name || data.divergence.kind)} ${data.divergence.number}: ${data.divergence.before_text || "–"} → ${data.divergence.after_text || "–"}${data.divergence.cause ? `. ${data.divergence.cause.what ?? ""} ${data.divergence.cause.place ?? ""}` : ""}`) : null,
      data.after.exit_code ? h("pre", { class: "log" }, data.after.output) : null,
      table([{ title: "", cell: ([name]) => word(name) }, { title: word("device"), cell: ([, run]) => run.device }, { title: word("time"), cell: ([, run]) => word("seconds", { count: run.seconds }), number: true }, { title: word("exitCode"), cell: ([, run]) => run.exit_code, number: true }], runs)),
    boxes.length ? h("div", { class: "charts" }, boxes) : null,
    card(word("compared"), table([
      { title: word("figure"), cell: (each) => readable(each.name && each.name !== each.kind ? `${word(`kind_${each.kind}`)}: ${each.name}` : word(`kind_${each.kind}`)) }, { title: word("count"), cell: (each) => whole(each.count), number: true }, { title: word("first"), cell: (each) => figure(each.first), number: true },
      { title: word("last"), cell: (each) => figure(each.last), number: true }, { title: word("largestDifference"), cell: (each) => figure(each.largest_difference), number: true }, { title: word("tolerance"), cell: (each) => figure(each.tolerance), number: true },
    ], [...data.compared].sort((one, other) => (one.kind === "settings") - (other.kind === "settings")))),
    data.cpu_fallbacks.length ? card(word("fallbacks"), table([{ title: word("operator"), cell: (each) => h("code", {}, each.op) }, { title: word("place"), cell: (each) => each.line }, { title: word("count"), cell: (each) => whole(each.count), number: true }], data.cpu_fallbacks)) : null,
  ].filter(Boolean);
}

const evaluation = (data) => [card(word("result"), table([
  { title: word("file"), cell: (each) => each.file }, { title: word("perplexity"), cell: (each) => figure(each.perplexity), number: true }, { title: word("tokens"), cell: (each) => whole(each.tokens), number: true },
  { title: word("accuracy"), cell: (each) => (each.accuracy === null || each.accuracy === undefined ? "–" : `${each.accuracy.toFixed(2)} %`), number: true }, { title: word("questions"), cell: (each) => whole(each.questions), number: true },
], data.files ?? []))];

const shown = (name, value) => {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return word(value ? "yes" : "no");
  if (typeof value === "number") return /bytes|memory/.test(name) ? bytes(value) : Number.isInteger(value) ? whole(value) : figure(value);
  return String(value);
};

// Any other result: its plain values as a list, its lists of objects as tables.
function plain(data) {
  const values = Array.isArray(data) ? {} : data;
  const simple = Object.entries(values).filter(([, value]) => value === null || typeof value !== "object" || (Array.isArray(value) && value.every((each) => typeof each !== "object")));
  const lists = Object.entries(Array.isArray(data) ? { [word("result")]: data } : values).filter(([, value]) => Array.isArray(value) && value.length && typeof value[0] === "object");
  const objects = Object.entries(values).filter(([, value]) => value && typeof value === "object" && !Array.isArray(value));
  const several = (value) => (Array.isArray(value) ? value.map(String).join(", ") || "–" : value);
  const pairs = (entries) => h("dl", { class: "pairs" }, entries.map(([name, value]) => [h("dt", {}, readable(name)), h("dd", {}, shown(name, several(value)))]));
  return [
    simple.length ? card(word("result"), pairs(simple)) : null,
    ...objects.map(([name, value]) => card(readable(name), pairs(Object.entries(value).map(([key, each]) => [key, each && typeof each === "object" ? JSON.stringify(each).slice(0, 300) : each])))),
    ...lists.map(([name, rows]) => {
      const keys = Object.keys(rows[0]).filter((key) => rows.some((each) => each[key] !== null && typeof each[key] !== "object"));
      return card(readable(name), table(keys.map((key) => ({ title: readable(key), cell: (each) => shown(key, typeof each[key] === "object" ? null : each[key]), number: typeof rows[0][key] === "number" })), rows.slice(0, 200)));
    }),
  ].filter(Boolean);
}
