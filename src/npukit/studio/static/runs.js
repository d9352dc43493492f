// Runs: all of the folder; some of them can be picked to be compared.
import { badge, button, card, empty, h, page, row, table, word, working } from "./dom.js";
import { duration, figure, when, whole } from "./format.js";
import { address, every, go, link } from "./pages.js";
import { api } from "./server.js";

const FEW = 50;
const MORE = 200; // runs that are shown at first, and by a click
export const MAX_COMPARED = 6;

export async function show(main) {
  const list = h("div", {}, working());
  const search = h("input", { type: "search", placeholder: word("searchRuns"), "aria-label": word("searchRuns") });
  const compare = h("a", { class: "button primary", hidden: true });
  const picked = new Set();
  let runs = [];
  let limit = FEW;
  let drawn = "";
  const offerComparison = () => {
    compare.hidden = picked.size < 2;
    compare.textContent = word("compareCount", { count: picked.size });
    compare.href = address("compare", { runs: [...picked].join(",") });
  };
  const draw = () => {
    const text = search.value.toLowerCase();
    const wanted = runs.filter((each) => `${each.title} ${each.kind} ${each.notes ?? ""}`.toLowerCase().includes(text));
    const looks = JSON.stringify([wanted.slice(0, limit), wanted.length]);
    if (looks === drawn) return;
    drawn = looks;
    const focused = document.activeElement?.id;
    list.replaceChildren(...(runs.length ? rows(wanted) : [noRuns()]));
    if (focused) document.getElementById(focused)?.focus();
  };
  const rows = (wanted) => [
    table(columns(picked, offerComparison), wanted.slice(0, limit), (each) => go("run", { id: each.id })),
    wanted.length > limit
      ? row(
          button(word("showMore", { count: wanted.length - limit }), () => {
            limit += MORE;
            draw();
          }),
        )
      : "",
  ];
  search.oninput = draw;
  main.append(page(word("runs"), word("runsLead"), card("", h("div", { class: "row tools" }, search, compare), list)));
  every(3000, async () => {
    runs = await api("runs");
    draw();
  });
}

const noRuns = () =>
  empty(
    word("noRuns"),
    word("noRunsHint"),
    link(word("train"), "train", {}, "button primary"),
    link(word("port"), "port"),
  );

function columns(picked, changed) {
  const pick = ({ id, title, step }) => {
    if (!step) return "";
    const name = word("pick", { name: title });
    const box = h("input", { id: `pick ${id}`, type: "checkbox", "aria-label": name, checked: picked.has(id) });
    box.onchange = () => {
      if (box.checked && picked.size < MAX_COMPARED) picked.add(id);
      else picked.delete(id);
      box.checked = picked.has(id);
      changed();
    };
    return box;
  };
  const name = ({ id, title, kind, notes }) => [
    h("a", { href: address("run", { id }) }, title),
    h("div", { class: "soft small" }, word(`verb_${kind.split(" ")[0]}`), notes && ` · ${notes.slice(0, 60)}`),
  ];
  return [
    { title: "", cell: pick, class: "pick" },
    { title: word("run"), cell: name, class: "wide" },
    { title: word("state"), cell: (each) => badge(each.state) },
    { title: word("step"), cell: (each) => (each.step ? whole(each.step) : "–"), number: true, class: "extra" },
    { title: word("loss"), cell: (each) => figure(each.loss), number: true },
    { title: word("evaluation"), cell: (each) => figure(each.evaluation), number: true, class: "extra" },
    { title: word("time"), cell: (each) => duration(each.seconds), number: true, class: "extra" },
    { title: word("started"), cell: (each) => when(each.created), number: true, class: "extra" },
  ];
}
