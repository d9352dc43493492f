// Machine: the cards as they are now, and what doctor says about them.
import { card, command, h, meter, page, table, tag, word, working } from "./dom.js";
import { doctor } from "./doctor.js";
import { bytes, percent } from "./format.js";
import { every, link } from "./pages.js";
import { api } from "./server.js";

const MIB = 2 ** 20;

export async function show(main) {
  const cards = h("div", {}, working()),
    findings = h("div", {}, working(word("examining")));
  main.append(page(word("machine"), word("machineLead"), card(word("cards"), cards), card(word("doctor"), findings)));
  every(3000, async () => cards.replaceChildren(...drawCards(await api("machine/cards"))));
  findings.replaceChildren(...doctor(await api("machine/doctor")));
}

function drawCards({ status, runs, simulated, command: line }) {
  const { devices, topology } = status;
  const real = runs.filter((run) => run.device !== "sim");
  return [
    h(
      "div",
      { class: "devices" },
      devices.map((each) => (status.kind === "cpu" ? host(each) : device(each, status, real))),
    ),
    topology.names.length > 1 && h("div", {}, h("h3", {}, word("links")), links(topology)),
    !status.simulated &&
      h(
        "div",
        {},
        h("h3", {}, word("simulatedCards"), " ", tag(word("simulated"), "sim")),
        h("p", { class: "soft" }, word("simulatedHint")),
        h("div", { class: "slots" }, simulated.map(slot)),
      ),
    status.trouble && h("p", { class: "soft" }, status.trouble),
    command(line),
  ].filter(Boolean);
}

const memory = (used, total) =>
  h(
    "div",
    { class: "meter-box" },
    h("span", { class: "figures" }, `${bytes(used * MIB)} / ${bytes(total * MIB)}`),
    meter(used / total, word("curve_memory")),
  );

const host = (each) =>
  h(
    "article",
    { class: "device" },
    h("div", { class: "device-head" }, h("b", {}, each.name)),
    memory(each.memory_used_mib ?? 0, each.memory_total_mib),
  );

// A card: its health, memory, heat, power and load, the runs that were given it, and other processes on it.
function device(each, { simulated }, runs) {
  const mine = runs.filter((run) => run.numbers.includes(each.number));
  const known = (value, text) => value !== null && h("span", {}, text);
  return h(
    "article",
    { class: "device" },
    h(
      "div",
      { class: "device-head" },
      h("b", {}, each.name),
      tag(each.number),
      simulated && tag(word("simulated"), "sim"),
      each.health && tag(each.health, each.health === "OK" ? "good" : "bad"),
    ),
    each.memory_total_mib && memory(each.memory_used_mib ?? 0, each.memory_total_mib),
    h(
      "div",
      { class: "facts" },
      known(each.busy_percent, word("busy", { share: percent((each.busy_percent ?? 0) / 100) })),
      known(each.temperature_c, `${Math.round(each.temperature_c)} °C`),
      known(each.power_w, `${Math.round(each.power_w)} W`),
      each.place && h("span", {}, each.place),
    ),
    mine.length > 0 &&
      h(
        "div",
        { class: "facts" },
        mine.map((run) => link(run.title, "run", { id: run.id }, "")),
      ),
    each.processes.length > 0 &&
      h(
        "ul",
        { class: "plain-list" },
        each.processes.map((text) => h("li", {}, text)),
      ),
  );
}

// A simulated card: free, or with the run that has it and the memory that it takes.
const slot = ({ number, run }) =>
  h(
    "article",
    { class: `slot ${run ? "taken" : ""}` },
    h("b", {}, number),
    run ? link(run.title, "run", { id: run.id }, "") : h("span", { class: "soft" }, word("free")),
    run && run.memory_gib !== null && h("span", { class: "soft figures" }, bytes(run.memory_gib * 2 ** 30)),
  );

function links({ names, links: between, cpus }) {
  const columns = names.map((title, at) => ({ title, cell: (each) => between[each][at] ?? "" }));
  return table(
    [
      { title: "", cell: (each) => h("b", {}, names[each]) },
      ...columns,
      { title: word("cpus"), cell: (each) => cpus[each] },
    ],
    [...names.keys()],
  );
}
