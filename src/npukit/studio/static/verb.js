// Eval, export, precision, performance: the options of a verb as a form, its runs and what they found.
import { badge, card, empty, h, page, table, tabs, word } from "./dom.js";
import { when } from "./format.js";
import { address, every, go } from "./pages.js";
import { api } from "./server.js";
import { verbForm } from "./verb_form.js";

const MAX_SHOWN = 50; // results in the list
const VERBS = {
  eval: ["eval", "infer"],
  export: ["export"],
  precision: [
    "precision compare",
    "precision capture",
    "precision bisect",
    "precision check",
    "precision weights",
    "precision ranks",
    "precision ops",
    "precision env",
  ],
  performance: ["advise", "profile", "tune"],
};

export async function show(main, values, name) {
  const [forms, found, choices] = await Promise.all([api("forms"), api("models"), api("machine/choices")]);
  const verbs = VERBS[name];
  const form = h("div"),
    results = h("div");
  const draw = (verb) =>
    form.replaceChildren(
      tabs(
        word(name),
        verbs.map((value) => ({ value, text: word(`form_${value.replaceAll(" ", "_")}`) })),
        verb,
        draw,
      ),
      verbForm(verb, forms[verb], { values, found, choices, started: (id) => go("run", { id }) }),
    );
  draw(verbs.includes(values.verb) ? values.verb : verbs[0]);
  main.append(page(word(name), word(`${name}Lead`), form, results));
  let drawn = "";
  every(3000, async () => {
    const mine = (await api("runs")).filter((each) => verbs.includes(each.kind)).slice(0, MAX_SHOWN);
    if (JSON.stringify(mine) === drawn) return;
    drawn = JSON.stringify(mine);
    results.replaceChildren(
      card(word("results"), mine.length ? list(mine) : empty(word("noResults"), word("noResultsHint"))),
    );
  });
}

const list = (runs) =>
  table(
    [
      { title: word("run"), cell: ({ id, title }) => h("a", { href: address("run", { id }) }, title), class: "wide" },
      { title: word("kind"), cell: ({ kind }) => word(`form_${kind.replaceAll(" ", "_")}`), class: "extra" },
      { title: word("state"), cell: ({ state }) => badge(state) },
      { title: word("started"), cell: ({ created }) => when(created), number: true },
    ],
    runs,
    ({ id }) => go("run", { id }),
  );
