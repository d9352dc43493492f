// A line chart as SVG: several series over steps, a crosshair that names the values, a linear or logarithmic scale.
import { figure, h, whole, word } from "./ui.js";

const SPACE = "http://www.w3.org/2000/svg";
const LEFT = 62, RIGHT = 12, TOP = 10, BOTTOM = 26;

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Round numbers between two.
function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= raw) * power;
  const made = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) made.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return made;
}

function powers(low, high) {
  const made = [];
  for (let at = Math.floor(Math.log10(low)); at <= Math.ceil(Math.log10(high)); at++) {
    for (const digit of high / low > 1000 ? [1] : [1, 2, 5]) if (digit * 10 ** at >= low && digit * 10 ** at <= high) made.push(digit * 10 ** at);
  }
  return made.length > 1 ? made : [low, high];
}

// An exponential mean, which begins without a bias.
export function smoothed(values, weight) {
  let mean = 0, total = 0;
  return weight ? values.map((value) => { mean = mean * weight + value * (1 - weight); total = total * weight + 1 - weight; return mean / total; }) : values;
}

// chart(box, {series: [{name, steps, values, kind}], log, smooth, format, title}); call it again with new values.
export function chart(box, given) {
  box.given = given;
  if (!box.draws) {
    box.draws = true;
    box.classList.add("chart");
    new ResizeObserver(() => draw(box)).observe(box);
  }
  draw(box);
}

function draw(box) {
  const { series: all, log, smooth = 0, format = figure, title = "", xTitle = word("step") } = box.given;
  const width = box.clientWidth, height = box.clientHeight || 220;
  const drawn = all.map((each) => ({ ...each, shown: smoothed(each.values, each.steps.length > 20 && each.smooth !== false ? smooth : 0) })).filter((each) => each.steps.length);
  if (!width) return;
  if (!drawn.length) { box.replaceChildren(h("p", { class: "nothing" }, word("noPoints"))); return; }
  const values = drawn.flatMap((each) => each.values).filter((each) => !log || each > 0);
  const first = Math.min(...drawn.map((each) => each.steps[0])), last = Math.max(...drawn.map((each) => each.steps.at(-1)));
  let low = values.length ? least(values) : 1, high = values.length ? most(values) : 10;
  if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low = log ? low / 2 : low - pad; high = log ? high * 2 : high + pad; }
  else if (!log) { const pad = (high - low) * 0.05; high += pad; low = low >= 0 && low < pad * 3 ? 0 : low - pad; }
  const tickFormat = format === figure ? (value) => (value && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3) ? value.toExponential(1).replace("e+", "e") : String(Number(value.toPrecision(3)))) : format;
  const scale = log ? Math.log : (value) => value;
  const x = (step) => LEFT + ((step - first) / (last - first || 1)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (scale(value) - scale(low)) / (scale(high) - scale(low))) * (height - TOP - BOTTOM);
  const label = drawn.map((each) => `${each.name}: ${format(each.values[0])} → ${format(each.values.at(-1))}`).join("; ");
  const art = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${label}` });
  for (const tick of log ? powers(low, high) : ticks(low, high, 4)) {
    art.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
    art.append(svg("text", { class: "axis", x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, tickFormat(tick)));
  }
  const steps = ticks(first, last, Math.max(2, Math.floor(width / 85))).filter((each) => each === Math.round(each));
  for (const tick of steps) art.append(svg("text", { class: "axis", x: x(tick), y: height - 7, "text-anchor": x(tick) > width - 40 ? "end" : "middle" }, whole(tick)));
  const points = (each, list) => each.steps.map((step, at) => (log && list[at] <= 0 ? null : `${x(step).toFixed(1)},${y(list[at]).toFixed(1)}`)).filter(Boolean).join(" ");
  for (const each of drawn) {
    const kind = `line ${each.kind ?? "c0"}`;
    if (each.shown !== each.values) art.append(svg("polyline", { class: `${kind} faint`, points: points(each, each.values) }));
    art.append(svg("polyline", { class: kind, points: points(each, each.shown) }));
    if (each.steps.length < 3) each.steps.forEach((step, at) => art.append(svg("circle", { class: `dot ${each.kind ?? "c0"}`, cx: x(step), cy: y(each.shown[at]), r: 3 })));
  }
  const cross = svg("g", { class: "cross", visibility: "hidden" });
  art.append(cross);
  const tip = h("div", { class: "tip", hidden: true });
  art.onpointermove = (event) => {
    const at = first + ((event.offsetX - LEFT) / (width - LEFT - RIGHT)) * (last - first);
    const near = drawn.map((each) => [each, nearest(each.steps, at)]);
    const step = near[0][0].steps[near[0][1]];
    cross.replaceChildren(svg("line", { class: "hair", x1: x(step), x2: x(step), y1: TOP, y2: height - BOTTOM }),
      ...near.map(([each, index]) => svg("circle", { class: `dot ${each.kind ?? "c0"}`, cx: x(each.steps[index]), cy: y(each.shown[index]), r: 3.5 })));
    cross.setAttribute("visibility", "visible");
    tip.replaceChildren(h("b", {}, `${xTitle} ${whole(step)}`), ...near.map(([each, index]) => h("span", {}, h("i", { class: each.kind ?? "c0" }), each.name, h("b", {}, format(each.shown[index])))));
    tip.hidden = false;
    tip.style.left = `${Math.min(x(step) + 12, width - tip.offsetWidth - 4)}px`;
    tip.style.top = `${TOP}px`;
  };
  art.onpointerleave = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
  box.replaceChildren(art, tip);
}

// Math.min(...values) has a limit; long curves do not.
const least = (values) => values.reduce((one, other) => (other < one ? other : one));
const most = (values) => values.reduce((one, other) => (other > one ? other : one));

function nearest(steps, at) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (steps[middle] < at) low = middle; else high = middle; }
  return at - steps[low] < steps[high] - at ? low : high;
}

export const legend = (series) => h("div", { class: "legend" }, series.map((each) => h("span", {}, h("i", { class: each.kind ?? "c0" }), each.name)));

// Bars of a histogram: [{from, to, rows}].
export function bars(box, given, title) {
  const highest = Math.max(...given.map((each) => each.rows), 1);
  box.classList.add("bars");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${title}: ${given.map((each) => `${each.from}–${each.to}: ${each.rows}`).join(", ")}`);
  const made = given.map((each) => {
    const bar = h("i", { title: `${each.from}–${each.to}: ${each.rows}` });
    bar.style.height = `${Math.max((100 * each.rows) / highest, each.rows ? 1.5 : 0)}%`;
    return bar;
  });
  box.replaceChildren(h("div", { class: "columns" }, made), h("div", { class: "ends" }, h("span", {}, whole(given[0]?.from ?? 0)), h("span", {}, title), h("span", {}, whole(given.at(-1)?.to ?? 0))));
}
