// Port, last step: what migrate leaves, to tick off.
import { card, command, empty, h, meter, word } from "./dom.js";
import { finding } from "./finding.js";
import { api, query, session } from "./server.js";

const LONGEST = 1900;
// What is ticked stays so when lines above it change.
const key = ({ code, file, evidence, what }) => `${code} ${file ?? ""} ${evidence || what}`.slice(0, LONGEST);

export async function todo({ path, style }) {
  const [{ left }, ticked] = await Promise.all([api("port/migrate", { path, style }), query("port/todo", { path })]);
  if (!left.length) return [empty(word("nothingLeft"), word("nothingLeftHint"))];
  let done = new Set(ticked.done);
  const progress = h("div", {});
  const count = () => {
    const ready = left.filter((each) => done.has(key(each))).length;
    progress.replaceChildren(
      h("p", { class: "soft", role: "status" }, word("todoCount", { done: ready, all: left.length })),
      meter(ready / left.length),
    );
  };
  const item = (each) => {
    const box = h("input", {
      type: "checkbox",
      checked: done.has(key(each)),
      disabled: session.read_only,
      "aria-label": each.what,
    });
    const made = h("li", { class: box.checked ? "done" : "" }, box, finding(each));
    box.onchange = async () => {
      done = new Set((await api("port/todo", { path, key: key(each), done: box.checked })).done);
      made.classList.toggle("done", box.checked);
      count();
    };
    return made;
  };
  count();
  return [
    card(
      word("port_todo"),
      progress,
      h("ul", { class: "todo" }, left.map(item)),
      command(`npukit migrate ${path} --diff`),
    ),
  ];
}
