// Runs: all of the folder; some of them compared by curve and by configuration.
import { address, api, badge, button, card, confirm, duration, empty, every, figure, go, h, link, page, query, readable, row, say, table, when, whole, word, working } from "./ui.js";
import { chart, legend } from "./chart.js";

const MORE = 50, MOST = 6;

export async function show(main, values) {
  if (values.compare) return compare(main, values.compare.split(","));
  const list = h("div", {}, working());
  const search = h("input", { type: "search", placeholder: word("searchRuns"), "aria-label": word("searchRuns") });
  const chosen = new Set();
  const compareButton = h("a", { class: "button primary", hidden: true });
  let runs = [], limit = MORE, drawn = "";
  const draw = () => {
    const wanted = runs.filter((each) => `${each.title} ${each.kind} ${each.notes ?? ""}`.toLowerCase().includes(search.value.toLowerCase()));
    compareButton.hidden = chosen.size < 2;
    compareButton.textContent = word("compareCount", { count: chosen.size });
    compareButton.href = address("runs", { compare: [...chosen].join(",") });
    const looks = JSON.stringify([wanted.slice(0, limit), [...chosen], limit, wanted.length]);
    if (looks === drawn) return;
    drawn = looks;
    if (!runs.length) return list.replaceChildren(empty(word("noRuns"), word("noRunsHint"), link(word("train"), "train", {}, "button primary"), link(word("port"), "port")));
    list.replaceChildren(table(columns(chosen, draw), wanted.slice(0, limit), (each) => go("run", { id: each.id })),
      wanted.length > limit ? row(button(word("showMore", { count: wanted.length - limit }), () => { limit += 200; draw(); })) : "");
  };
  search.oninput = draw;
  main.append(page(word("runs"), word("runsLead"), card("", h("div", { class: "row tools" }, search, compareButton), list)));
  every(3000, async () => { runs = await api("runs"); draw(); });
}

function columns(chosen, draw) {
  const pick = (each) => {
    if (each.step === undefined || each.step === null) return "";
    const box = h("input", { type: "checkbox", "aria-label": word("pick", { name: each.title }), checked: chosen.has(each.id) });
    box.onchange = () => { if (box.checked && chosen.size < MOST) chosen.add(each.id); else { chosen.delete(each.id); box.checked = false; } draw(); };
    return box;
  };
  return [
    { title: "", cell: pick, class: "pick" },
    { title: word("run"), cell: (each) => [h("a", { href: address("run", { id: each.id }) }, each.title), h("div", { class: "soft small" }, word(`verb_${each.kind.split(" ")[0]}`), each.notes ? ` · ${each.notes.slice(0, 60)}` : "")], class: "wide" },
    { title: word("state"), cell: (each) => badge(each.state) },
    { title: word("step"), cell: (each) => (each.step ? whole(each.step) : "–"), number: true, class: "extra" },
    { title: word("loss"), cell: (each) => figure(each.loss), number: true },
    { title: word("evaluation"), cell: (each) => figure(each.evaluation), number: true, class: "extra" },
    { title: word("time"), cell: (each) => duration(each.seconds), number: true, class: "extra" },
    { title: word("started"), cell: (each) => when(each.created), number: true, class: "extra" },
  ];
}

export const names = { loss: "curve_loss", eval_loss: "curve_eval_loss", learning_rate: "curve_learning_rate", grad_norm: "curve_grad_norm", items_per_second: "curve_speed", memory_gib: "curve_memory", data_wait: "curve_data_wait", utilisation: "curve_utilisation" };
export const curveName = (name) => (names[name] ? word(names[name]) : readable(name));

async function compare(main, ids) {
  const body = h("div", {}, working());
  main.append(page(word("compareRuns"), "", body));
  const found = await Promise.all(ids.slice(0, MOST).map(async (id) => ({ ...(await query("run", { id })), ...(await query("run/curves", { id })), id })));
  const all = [...new Set(found.flatMap((each) => Object.keys(each.curves)))].sort((a, b) => (Object.keys(names).indexOf(a) + 99) % 99 - (Object.keys(names).indexOf(b) + 99) % 99);
  const kinds = found.map((_, at) => `c${at}`);
  let log = false, smooth = 0.6;
  const charts = h("div", { class: "charts" });
  const drawCharts = () => {
    charts.replaceChildren(...all.map((name) => {
      const series = found.map((each, at) => ({ name: each.title, kind: kinds[at], smooth: ["loss", "grad_norm", "items_per_second"].includes(name), steps: each.curves[name]?.[0] ?? [], values: each.curves[name]?.[1] ?? [] })).filter((each) => each.steps.length);
      const box = h("div", { class: "plot" });
      requestAnimationFrame(() => chart(box, { series, log: log && /loss|norm/.test(name), smooth, title: curveName(name) }));
      return card(curveName(name), box);
    }));
  };
  const keys = [...new Set(found.flatMap((each) => Object.keys(each.configuration)))];
  const differ = keys.filter((key) => new Set(found.map((each) => JSON.stringify(each.configuration[key]))).size > 1);
  const shown = (value) => (value === undefined || value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  body.replaceChildren(
    h("div", { class: "row tools" }, legend(found.map((each, at) => ({ name: each.title, kind: kinds[at] }))), controls(smooth, log, (change) => { if ("log" in change) log = change.log; else smooth = change.smooth; drawCharts(); })),
    charts,
    card(word("configuration"), differ.length ? table([{ title: word("option"), cell: (key) => h("code", {}, key) }, ...found.map((each) => ({ title: each.title, cell: (key) => shown(each.configuration[key]) }))], differ) : h("p", { class: "soft" }, word("sameConfiguration"))));
  drawCharts();
}

export function controls(smooth, log, act) {
  const slider = h("input", { type: "range", min: "0", max: "0.95", step: "0.05", value: smooth });
  slider.oninput = () => act({ smooth: Number(slider.value) });
  const box = h("input", { type: "checkbox", checked: log });
  box.onchange = () => act({ log: box.checked });
  return h("div", { class: "row controls" }, h("label", {}, word("smoothing"), slider), h("label", {}, box, word("logScale")));
}

export async function remove(found) {
  const files = h("input", { type: "checkbox", checked: false });
  const more = found.step !== undefined && found.output ? h("label", { class: "switch" }, files, h("span", {}, word("deleteFiles", { folder: found.output }))) : null;
  if (!(await confirm(word("deleteRun"), word("deleteAsk", { name: found.title }), word("delete"), more))) return;
  await api("run/delete", { id: found.id, files: found.foreign || files.checked });
  say(word("deleted"));
  go("runs");
}
