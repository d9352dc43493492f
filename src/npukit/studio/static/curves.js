// The curves of one run or of several, in charts that share smoothing, scale and zoom.
import { card, h, word } from "./dom.js";
import { bytes, figure, percent, readable, whole } from "./format.js";
import { chart, legend } from "./chart.js";
import { least, most } from "./scales.js";
import { query } from "./server.js";

// In the order in which they are shown.
const KNOWN = {
  loss: { name: "curve_loss", noisy: true, log: true },
  eval_loss: { name: "curve_eval_loss", log: true },
  learning_rate: { name: "curve_learning_rate" },
  grad_norm: { name: "curve_grad_norm", noisy: true, log: true },
  items_per_second: {
    name: "curve_speed",
    noisy: true,
    format: (value, digits) => (value >= 1000 ? whole(value) : figure(value, digits)),
  },
  memory_gib: { name: "curve_memory", format: (value, digits) => bytes(value * 2 ** 30, digits) },
  data_wait: { name: "curve_data_wait", format: percent },
  utilisation: { name: "curve_utilisation", format: percent },
};
const ORDER = Object.keys(KNOWN);
const place = (name) => (name in KNOWN ? ORDER.indexOf(name) : ORDER.length);
const nameOf = (name) => (KNOWN[name] ? word(KNOWN[name].name) : readable(name));

// The curves of a run; of a range of steps, those with more detail.
export const curvesOf = (id, range) =>
  query("run/curves", { id, ...(range ? { first: range[0], last: range[1] } : {}) });

// The charts of a page. zoomed(range) is called when other steps are to be shown; draw(runs) shows
// [{title, curves: {name: [steps, values]}}], and may be called as often as there is something new.
export function curvePanel(zoomed) {
  const box = h("div", { class: "charts" });
  const view = { smooth: 0.6, log: false, range: null };
  let runs = [];
  let all = null; // the first and the last step that there are
  let names = "";
  let plots = {};
  const zoom = (range) => {
    view.range = range;
    draw(runs);
    zoomed(range);
  };
  const draw = (given) => {
    runs = given;
    const wanted = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].sort(
      (one, other) => place(one) - place(other),
    );
    const charts = wanted.filter((name) => !(name === "eval_loss" && isBesideLoss(runs)));
    if (!view.range) all = extent(runs);
    if (names !== `${charts} ${runs.length} ${wanted.length}`) {
      names = `${charts} ${runs.length} ${wanted.length}`;
      plots = Object.fromEntries(charts.map((name) => [name, h("div", { class: "plot" })]));
      const tools = charts.length
        ? h(
            "div",
            { class: "row tools full" },
            controls(view, () => draw(runs)),
          )
        : "";
      box.replaceChildren(
        tools,
        ...charts.map((name) => {
          const series = seriesOf(name, runs);
          return card(nameOf(name), runs.length === 1 && series.length > 1 && legend(series), plots[name]);
        }),
      );
    }
    for (const [name, plot] of Object.entries(plots)) {
      const { log, format } = KNOWN[name] ?? {};
      chart(plot, {
        series: seriesOf(name, runs),
        title: nameOf(name),
        format,
        log: view.log && log,
        smooth: view.smooth,
        range: view.range,
        all,
        zoom,
      });
    }
  };
  return { box, draw, view };
}

// The loss of an evaluation stands beside that of the training, where there is one run.
const isBesideLoss = (runs) => runs.length === 1 && "loss" in runs[0].curves;

function seriesOf(name, runs) {
  const line = (run, each, title, kind) => {
    const [steps, values] = run.curves[each] ?? [[], []];
    return { name: title, kind, steps, values, smooth: KNOWN[each]?.noisy };
  };
  if (runs.length > 1) return runs.map((run, at) => line(run, name, run.title, `c${at}`));
  const together = name === "loss" ? ["loss", "eval_loss"].filter((each) => each in runs[0].curves) : [name];
  return together.map((each, at) => line(runs[0], each, nameOf(each), `c${at}`));
}

function extent(runs) {
  const steps = runs.flatMap((run) => Object.values(run.curves).map(([each]) => each)).filter((each) => each.length);
  return steps.length ? [least(steps.map((each) => each[0])), most(steps.map((each) => each.at(-1)))] : null;
}

function controls(view, changed) {
  const slider = h("input", { type: "range", min: "0", max: "0.95", step: "0.05", value: view.smooth });
  slider.oninput = () => {
    view.smooth = Number(slider.value);
    changed();
  };
  const box = h("input", { type: "checkbox", checked: view.log });
  box.onchange = () => {
    view.log = box.checked;
    changed();
  };
  return [
    h("span", { class: "soft small" }, word("zoomHint")),
    h("span", { class: "space" }),
    h(
      "div",
      { class: "row controls" },
      h("label", {}, word("smoothing"), slider),
      h("label", {}, box, word("logScale")),
    ),
  ];
}
