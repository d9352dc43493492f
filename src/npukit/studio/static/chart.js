// A line chart as SVG: several series over steps, a crosshair that names the values, a linear or logarithmic scale, zoom.
import { h, word } from "./dom.js";
import { figure, whole } from "./format.js";
import { least, most, nearest, powers, smoothed, texts, ticks } from "./scales.js";
import { zoomListeners } from "./zoom.js";

// Pixels around the lines.
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 26;
const ENOUGH = 20; // points from which on a line is smoothed

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const charts = new WeakMap(); // by their boxes

// chart(box, {series: [{name, steps, values, kind, smooth}], title, log, smooth, format, range, all, zoom, xTitle})
// draws into the box; call it again with new values. `range` is what is shown of `all` steps, zoom(range) asks for
// another.
export function chart(box, given) {
  if (!charts.has(box)) charts.set(box, new Chart(box));
  charts.get(box).update(given);
}

class Chart {
  constructor(box) {
    this.box = box;
    this.pixel = null; // where the pointer is
    this.art = h("div", { class: "art", ...zoomListeners(this) });
    this.tip = h("div", { class: "tip", hidden: true });
    this.art.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.art.addEventListener("pointerleave", () => this.point(null));
    box.classList.add("chart");
    new ResizeObserver(() => this.draw()).observe(box);
  }

  update(given) {
    this.given = given;
    this.draw();
  }

  draw() {
    const { box, art, tip, given } = this;
    if (!box.clientWidth) return;
    this.drawn = given.series.filter((each) => each.steps.length).map((each) => withMean(each, given.smooth));
    if (!this.drawn.length) return box.replaceChildren(h("p", { class: "nothing" }, word("noPoints")));
    this.frame = makeFrame(box, this.drawn, given);
    const { width, height, format } = this.frame;
    const ends = this.drawn.map(({ name, values }) => `${name}: ${format(values[0])} → ${format(values.at(-1))}`);
    const picture = svg("svg", { width, height, role: "img", "aria-label": `${given.title}. ${ends.join("; ")}` });
    this.chosen = svg("rect", { class: "chosen", y: TOP, height: height - TOP - BOTTOM });
    this.cross = svg("g", {});
    picture.append(
      ...axes(this.frame),
      ...this.drawn.flatMap((each) => line(each, this.frame)),
      this.chosen,
      this.cross,
    );
    art.replaceChildren(picture);
    this.describe();
    if (art.parentNode !== box) box.replaceChildren(art, tip);
    this.point(this.pixel);
  }

  // What the keyboard and a screen reader need, and the way back from a zoom.
  describe() {
    const { box, art, given } = this;
    if (given.zoom) {
      for (const [name, value] of Object.entries({ tabindex: "0", role: "group" })) art.setAttribute(name, value);
      art.setAttribute("aria-label", `${given.title}. ${word("zoomKeys")}`);
    }
    box.querySelector(".all")?.remove();
    if (given.range) {
      box.append(
        h("button", { type: "button", class: "button small all", onclick: () => given.zoom(null) }, word("zoomOut")),
      );
    }
  }

  // Mark what is dragged over, from one pixel to another.
  mark(from, to) {
    const { left, width } = this.frame;
    const [one, other] = [from, to].map((pixel) => Math.max(left, Math.min(width - RIGHT, pixel)));
    this.chosen.setAttribute("x", Math.min(one, other));
    this.chosen.setAttribute("width", Math.abs(one - other));
  }

  // The crosshair at a pixel, and the values there.
  point(pixel) {
    this.pixel = pixel;
    this.tip.hidden = pixel === null;
    if (pixel === null) return this.cross.replaceChildren();
    const { x, y, stepAt, height, width, format, xTitle } = this.frame;
    const near = this.drawn.map((each) => ({ ...each, at: nearest(each.steps, stepAt(pixel)) }));
    const step = near[0].steps[near[0].at];
    this.cross.replaceChildren(
      svg("line", { class: "hair", x1: x(step), x2: x(step), y1: TOP, y2: height - BOTTOM }),
      ...near.map(({ kind, steps, shown, at }) =>
        svg("circle", { class: `dot ${kind}`, cx: x(steps[at]), cy: y(shown[at]), r: 3.5 }),
      ),
    );
    this.tip.replaceChildren(
      h("b", {}, `${xTitle} ${whole(step)}`),
      ...near.map(({ name, kind, shown, at }) =>
        h("span", {}, h("i", { class: kind }), name, h("b", {}, format(shown[at]))),
      ),
    );
    this.tip.style.left = `${Math.min(x(step) + 12, width - this.tip.offsetWidth - 4)}px`;
    this.tip.style.top = `${TOP}px`;
  }
}

const withMean = (series, weight) => {
  const isSmooth = weight && series.smooth && series.steps.length > ENOUGH;
  return { kind: "c0", ...series, shown: isSmooth ? smoothed(series.values, weight) : series.values };
};

// The scales of a chart.
function makeFrame(box, drawn, { log, format = figure, range, xTitle = word("step"), all: known }) {
  const { clientWidth: width, clientHeight: height } = box;
  const all = known ?? [least(drawn.map((each) => each.steps[0])), most(drawn.map((each) => each.steps.at(-1)))];
  const [first, last] = range ?? all;
  const values = drawn.flatMap((each) =>
    each.values.filter((value, at) => (!log || value > 0) && each.steps[at] >= first && each.steps[at] <= last),
  );
  const [low, high] = limits(values.length ? values : [1], log);
  const marks = log ? powers(low, high) : ticks(low, high, 4);
  const names = texts(marks, format);
  const left = 16 + 6.7 * most(names.map((each) => each.length));
  const scale = log ? Math.log : (value) => value;
  return {
    width,
    height,
    left,
    first,
    last,
    all,
    format,
    xTitle,
    log,
    marks,
    names,
    x: (step) => left + ((step - first) / (last - first || 1)) * (width - left - RIGHT),
    y: (value) => TOP + (1 - (scale(value) - scale(low)) / (scale(high) - scale(low))) * (height - TOP - BOTTOM),
    stepAt: (pixel) => first + ((pixel - left) / (width - left - RIGHT)) * (last - first),
  };
}

function limits(values, log) {
  const low = least(values);
  const high = most(values);
  if (log) return low === high ? [low / 2, high * 2] : [low, high];
  const pad = (high - low) * 0.05 || Math.abs(low) * 0.1 || 1;
  return [low >= 0 && low < pad * 3 ? 0 : low - pad, high + pad];
}

function axes({ width, height, left, first, last, marks, names, x, y }) {
  const levels = marks.flatMap((mark, at) => [
    svg("line", { class: "grid", x1: left, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
    svg("text", { class: "axis", x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, names[at]),
  ]);
  const steps = ticks(first, last, Math.max(2, Math.floor(width / 85))).filter((step) => step === Math.round(step));
  const below = steps.map((step) => {
    const anchor = x(step) > width - 40 ? "end" : "middle";
    return svg("text", { class: "axis", x: x(step), y: height - 7, "text-anchor": anchor }, whole(step));
  });
  return [...levels, ...below];
}

function line({ steps, values, shown, kind }, { first, last, log, x, y }) {
  const points = (list) => {
    const inside = steps
      .map((step, at) => [step, list[at], at])
      .filter(
        ([step, value, at]) =>
          (!log || value > 0) && (steps[at + 1] ?? step) >= first && (steps[at - 1] ?? step) <= last,
      );
    return inside.map(([step, value]) => [x(step).toFixed(1), y(value).toFixed(1)]);
  };
  const path = (list, more) => svg("polyline", { class: `line ${kind} ${more}`, points: points(list).join(" ") });
  const dots =
    steps.length < 3 ? points(shown).map(([cx, cy]) => svg("circle", { class: `dot ${kind}`, cx, cy, r: 3 })) : [];
  return [...(shown === values ? [] : [path(values, "faint")]), path(shown, ""), ...dots];
}

// series: [{name, kind, href}]
export const legend = (series) =>
  h(
    "div",
    { class: "legend" },
    series.map(({ name, kind = "c0", href }) =>
      h("span", {}, h("i", { class: kind }), href ? h("a", { href }, name) : name),
    ),
  );
