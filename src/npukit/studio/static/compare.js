// Some runs side by side: their curves, and the options in which they differ.
import { card, h, table, word, working } from "./dom.js";
import { legend } from "./chart.js";
import { curvePanel, curvesOf } from "./curves.js";
import { plain } from "./format.js";
import { address, toRuns } from "./pages.js";
import { MAX_COMPARED } from "./runs.js";
import { query } from "./server.js";

export async function show(main, { runs = "" }) {
  const ids = runs.split(",").filter(Boolean).slice(0, MAX_COMPARED);
  const body = h("div", {}, working());
  main.append(
    h("div", { class: "page" }, h("div", { class: "top" }, toRuns(), h("h1", {}, word("compareRuns"))), body),
  );
  const found = await Promise.all(
    ids.map(async (id) => ({ ...(await query("run", { id })), ...(await curvesOf(id)), id })),
  );
  const panel = curvePanel(async (range) => {
    const curves = await Promise.all(ids.map((id) => curvesOf(id, range)));
    if (range === panel.view.range) panel.draw(found.map((run, at) => ({ ...run, ...curves[at] })));
  });
  const names = found.map(({ title, id }, at) => ({ name: title, kind: `c${at}`, href: address("run", { id }) }));
  body.replaceChildren(legend(names), panel.box, card(word("configuration"), differences(found)));
  panel.draw(found);
}

function differences(found) {
  const keys = [...new Set(found.flatMap((run) => Object.keys(run.configuration)))];
  const different = keys.filter((key) => new Set(found.map((run) => JSON.stringify(run.configuration[key]))).size > 1);
  if (!different.length) return h("p", { class: "soft" }, word("sameConfiguration"));
  const columns = found.map((run) => ({ title: run.title, cell: (key) => plain(run.configuration[key]) }));
  return table([{ title: word("option"), cell: (key) => h("code", {}, key) }, ...columns], different);
}
