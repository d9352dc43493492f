// What a verb found, for people: both loss curves of a verification, tables, or a page where one was written.
import { card, h, pairs, problem, table, word } from "./dom.js";
import { chart, legend } from "./chart.js";
import { bytes, figure, plain, readable, whole } from "./format.js";
import { query } from "./server.js";

const MAX_ROWS = 200;

export async function drawResult(box, { id, kind, state, has_page: hasPage }) {
  if (!["finished", "failed"].includes(state)) return box.replaceChildren();
  const { data, text } = await query("run/result", { id });
  const draw = { verify: verification, eval: evaluation }[kind] ?? anything;
  const source = `api/run/report?${new URLSearchParams({ id })}`;
  const page = card(
    word("report"),
    h("iframe", { class: "report", src: source, sandbox: "allow-scripts", title: word("report") }),
  );
  const parts =
    data && typeof data === "object"
      ? draw(data)
      : text
        ? [card(word("result"), h("pre", { class: "log" }, text))]
        : [];
  box.replaceChildren(...(hasPage ? [page] : parts));
}

// The result of `npukit verify`.
export function verification(data) {
  const { same, tolerance, divergence, before, after, losses = [], cpu_fallbacks: fallbacks } = data;
  const curves = losses.filter((each) => each.before.length > 1).map(lossChart);
  const runs = [
    { title: "", cell: ([name]) => word(name) },
    { title: word("device"), cell: ([, run]) => run.device },
    { title: word("time"), cell: ([, run]) => word("seconds", { count: run.seconds }), number: true },
    { title: word("exitCode"), cell: ([, run]) => run.exit_code, number: true },
  ];
  const operators = [
    { title: word("operator"), cell: (each) => h("code", {}, each.op) },
    { title: word("place"), cell: (each) => each.line },
    { title: word("count"), cell: (each) => whole(each.count), number: true },
  ];
  return [
    card(
      word(same ? "verifiedSame" : "verifiedDifferent"),
      h("p", {}, word(same ? "sameHint" : "differentHint", { tolerance })),
      divergence && problem(differenceText(divergence)),
      after.exit_code !== 0 && h("pre", { class: "log" }, after.output),
      table(runs, [
        ["before", before],
        ["after", after],
      ]),
    ),
    curves.length > 0 && h("div", { class: "charts" }, curves),
    card(word("compared"), compared(data.compared)),
    fallbacks.length > 0 && card(word("fallbacks"), table(operators, fallbacks)),
  ].filter(Boolean);
}

function differenceText({ name, kind, number, before_text: before, after_text: after, cause }) {
  const why = cause ? `. ${cause.what ?? ""} ${cause.place ?? ""}` : "";
  return `${readable(name || kind)} ${number}: ${before || "–"} → ${after || "–"}${why}`;
}

function lossChart({ name, before, after }) {
  const line = (values, kind, title) => ({ name: word(title), kind, steps: values.map((_, at) => at + 1), values });
  const series = [line(before, "c1", "before"), line(after, "c0 dashed", "after")];
  const box = h("div", { class: "plot" });
  requestAnimationFrame(() => chart(box, { series, title: readable(name), xTitle: word("number") }));
  return card(readable(name), legend(series), box);
}

function compared(rows) {
  const name = ({ kind, name: own }) =>
    own && own !== kind ? `${word(`kind_${kind}`)}: ${own}` : word(`kind_${kind}`);
  const number = (title, key, format = figure) => ({
    title: word(title),
    cell: (each) => format(each[key]),
    number: true,
  });
  const settingsLast = [...rows].sort((one, other) => (one.kind === "settings") - (other.kind === "settings"));
  return table(
    [
      { title: word("figure"), cell: name },
      number("count", "count", whole),
      number("first", "first"),
      number("last", "last"),
      number("largestDifference", "largest_difference"),
      number("tolerance", "tolerance"),
    ],
    settingsLast,
  );
}

// The result of `npukit eval`.
const evaluation = ({ files = [] }) => [
  card(
    word("result"),
    table(
      [
        { title: word("file"), cell: (each) => each.file },
        { title: word("perplexity"), cell: (each) => figure(each.perplexity), number: true },
        { title: word("tokens"), cell: (each) => whole(each.tokens), number: true },
        {
          title: word("accuracy"),
          cell: (each) => (typeof each.accuracy === "number" ? `${each.accuracy.toFixed(2)} %` : "–"),
          number: true,
        },
        { title: word("questions"), cell: (each) => whole(each.questions), number: true },
      ],
      files,
    ),
  ),
];

// Any other result: its plain values as pairs, its objects as more of them, its lists of objects as tables.
function anything(data) {
  const entries = Object.entries(Array.isArray(data) ? { [word("result")]: data } : data);
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const isRows = (value) => Array.isArray(value) && value.length > 0 && isObject(value[0]);
  const simple = entries.filter(([, value]) => !isObject(value) && !isRows(value));
  return [
    simple.length > 0 && card(word("result"), values(simple)),
    ...entries
      .filter(([, value]) => isObject(value))
      .map(([name, value]) => card(readable(name), values(Object.entries(value)))),
    ...entries.filter(([, value]) => isRows(value)).map(([name, rows]) => card(readable(name), objects(rows))),
  ].filter(Boolean);
}

function text(name, value) {
  if (Array.isArray(value)) return value.map(plain).join(", ") || "–";
  if (typeof value !== "number") return plain(value);
  if (/bytes|memory/.test(name)) return bytes(value);
  return Number.isInteger(value) ? whole(value) : figure(value);
}

const values = (entries) => pairs(...entries.map(([name, value]) => [readable(name), text(name, value)]));

function objects(rows) {
  const names = Object.keys(rows[0]).filter((name) =>
    rows.some((each) => each[name] !== null && typeof each[name] !== "object"),
  );
  const column = (name) => ({
    title: readable(name),
    cell: (each) => text(name, each[name]),
    number: typeof rows[0][name] === "number",
  });
  return table(names.map(column), rows.slice(0, MAX_ROWS));
}
