// Port: choose a project; see what keeps it from NPUs; take its migration hunk by hunk; prove it; tick off the rest.
import { card, empty, h, page, tabs, word, working } from "./dom.js";
import { field, pathInput } from "./fields.js";
import { go } from "./pages.js";
import { analysis } from "./analysis.js";
import { migration } from "./migration.js";
import { verify } from "./verify.js";
import { todo } from "./todo.js";

const STEPS = { analysis, migration, verify, todo };

export async function show(main, { path, step: wanted, style = "portable" }) {
  const step = wanted in STEPS ? wanted : "analysis";
  const { input, around } = pathInput(path, { folders: true });
  input.placeholder = word("projectPlaceholder");
  const choose = h(
    "form",
    { class: "row tools" },
    field(word("project"), input, "", { around, kind: "grow" }),
    h("button", { class: "button primary" }, word("analyze")),
  );
  choose.onsubmit = (event) => {
    event.preventDefault();
    if (input.value.trim()) go("port", { path: input.value.trim() });
  };
  const body = h("div", {}, path ? working(word("reading")) : empty(word("noProject"), word("noProjectHint")));
  const steps = Object.keys(STEPS).map((value, at) => ({ value, text: `${at + 1}. ${word(`port_${value}`)}` }));
  main.append(
    page(
      word("port"),
      word("portLead"),
      card("", choose),
      path && tabs(word("steps"), steps, step, (value) => go("port", { path, style, step: value })),
      body,
    ),
  );
  if (path) body.replaceChildren(...(await STEPS[step]({ path, style, ...kept(path) })));
}

// What this browser remembers of a project: where its migrated copy is, and the command that trains.
function kept(path) {
  const item = (name, fallback) => ({
    get: () => sessionStorage.getItem(`npukit-${name} ${path}`) ?? fallback,
    set: (value) => sessionStorage.setItem(`npukit-${name} ${path}`, value),
  });
  return { output: item("output", `${path.replace(/\/+$/, "")}-npu`), command: item("command", "python train.py") };
}
