// Machine: the cards as they are now, and what doctor says about them.
import { address, api, bytes, card, command, every, h, page, percent, table, tag, word, working } from "./ui.js";

export async function show(main) {
  const cards = h("div", {}, working()), doctor = h("div", {}, working(word("examining")));
  main.append(page(word("machine"), word("machineLead"), card(word("cards"), cards), card(word("doctor"), doctor)));
  every(3000, async () => drawCards(cards, await api("machine/cards")));
  drawDoctor(doctor, await api("machine/doctor"));
}

function meter(used, total) {
  const share = total ? used / total : 0;
  const bar = h("i");
  bar.style.width = `${Math.min(100, 100 * share)}%`;
  return h("div", { class: "meter-box" }, h("span", { class: "figures" }, `${bytes(used * 2 ** 20)} / ${bytes(total * 2 ** 20)}`), h("div", { class: "meter" }, bar));
}

const unit = (value, text) => (value === null || value === undefined ? null : h("span", {}, `${Math.round(value)} ${text}`));

function device(each, found, runs) {
  const mine = runs.filter((run) => run.device !== "sim" && run.numbers.includes(each.number));
  return h("article", { class: "device" },
    h("div", { class: "device-head" }, h("b", {}, found.kind === "cpu" ? "CPU" : `${each.name}`), found.kind === "cpu" ? null : tag(`${each.number}`), found.simulated && tag(word("simulated"), "sim"),
      each.health && tag(each.health, each.health === "OK" ? "good" : "bad")),
    found.kind === "cpu" ? h("p", { class: "soft" }, each.name) : null,
    each.memory_total_mib ? meter(each.memory_used_mib ?? 0, each.memory_total_mib) : null,
    h("div", { class: "facts" }, unit(each.temperature_c, "°C"), unit(each.power_w, "W"), each.busy_percent === null ? null : h("span", {}, word("busy", { share: percent(each.busy_percent / 100) })), each.place && h("span", {}, each.place)),
    mine.length ? h("div", { class: "facts" }, mine.map((run) => h("a", { href: address("run", { id: run.id }) }, run.title))) : null,
    each.processes.length ? h("ul", { class: "plain-list" }, each.processes.map((text) => h("li", {}, text))) : null);
}

function drawCards(box, { status, runs, simulated_cards, command: line }) {
  const links = status.topology.names.length > 1 ? table(
    [{ title: "", cell: (each) => h("b", {}, each.name) }, ...status.topology.names.map((name, at) => ({ title: name, cell: (each) => each.links[at] ?? "" })), { title: word("cpus"), cell: (each) => each.cpus }],
    status.topology.names.map((name, at) => ({ name, links: status.topology.links[at], cpus: status.topology.cpus[at] }))) : null;
  const used = runs.filter((run) => run.device === "sim");
  const taken = used.reduce((sum, run) => sum + run.numbers.length, 0);
  box.replaceChildren(
    h("div", { class: "devices" }, status.devices.map((each) => device(each, status, runs)), status.simulated ? null : h("article", { class: "device" },
      h("div", { class: "device-head" }, h("b", {}, word("simulatedCards")), tag(word("simulated"), "sim")),
      h("p", { class: "soft" }, word("simulatedHint", { free: simulated_cards - taken, all: simulated_cards })),
      h("div", { class: "facts" }, used.map((run) => h("a", { href: address("run", { id: run.id }) }, run.title))))),
    status.trouble ? h("p", { class: "soft" }, status.trouble) : "", links ? h("div", {}, h("h3", {}, word("links")), links) : "", command(line));
}

function drawDoctor(box, found) {
  const states = { good: "finished", warning: "stopped", error: "failed", skipped: "queued" };
  const check = (each) => h("li", { class: "check" },
    h("span", { class: `badge ${states[each.state]}` }, word(`check_${each.state}`)),
    h("div", {}, h("b", {}, each.title), " ", h("span", { class: "soft" }, each.says), each.findings.map(finding)));
  box.replaceChildren(
    h("p", { class: "verdict" }, word(found.good ? "machineGood" : "machineBad")),
    h("ul", { class: "checks" }, found.checks.map(check)), command(found.command));
}

const finding = (each) => h("div", { class: "finding" }, h("p", {}, tag(each.code), " ", h("b", {}, each.what)), each.why && h("p", { class: "soft" }, each.why), each.remedy && h("p", {}, each.remedy),
  each.commands.map((line) => command(line)));
