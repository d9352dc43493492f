// A histogram of bars: [{from, to, rows}].
import { h } from "./dom.js";
import { whole } from "./format.js";

export function histogram(groups, title) {
  const highest = Math.max(...groups.map((each) => each.rows), 1);
  const text = ({ from, to, rows }) => `${whole(from)}–${whole(to)}: ${whole(rows)}`;
  const bars = groups.map((each) => {
    const bar = h("i", { title: text(each) });
    bar.style.height = `${Math.max((100 * each.rows) / highest, each.rows ? 1.5 : 0)}%`;
    return bar;
  });
  return h(
    "div",
    { class: "bars", role: "img", "aria-label": `${title}. ${groups.map(text).join(", ")}` },
    h("div", { class: "columns" }, bars),
    h(
      "div",
      { class: "ends" },
      h("span", {}, whole(groups[0].from)),
      h("span", {}, title),
      h("span", {}, whole(groups.at(-1).to)),
    ),
  );
}
