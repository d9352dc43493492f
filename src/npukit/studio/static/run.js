// One run: how far it is, its curves, the log of every rank, and the first error explained.
import { address, api, badge, button, bytes, card, command, confirm, duration, every, figure, h, icon, link, percent, query, row, say, session, table, tag, when, whole, word, working } from "./ui.js";
import { chart, legend } from "./chart.js";
import { controls, curveName, names, remove } from "./runs.js";
import { drawResult } from "./result.js";

const LIVE = ["queued", "running", "stopping"];
const FORMATS = { memory_gib: (value) => bytes(value * 2 ** 30), data_wait: percent, utilisation: percent, items_per_second: (value) => (value >= 100 ? whole(value) : figure(value)) };
const NOISY = ["loss", "grad_norm", "items_per_second"];
const TOGETHER = { loss: ["loss", "eval_loss"] };

export async function show(main, { id }) {
  const first = query("run/curves", { id }).catch(() => null); // asked for while the rest is
  let found = await query("run", { id });
  const head = h("div"), tiles = h("div"), plots = h("div", { class: "charts" }), error = h("div"), result = h("div"), logs = h("div");
  const isTraining = Object.keys(found.configuration).length > 0 || found.step !== undefined;
  main.append(h("div", { class: "page" }, head, error, tiles, result, plots, logs, isTraining ? notes(found) : "", isTraining ? configuration(found) : ""));
  const look = { smooth: 0.6, log: false };
  let explained = "", state = "";
  if (found.logs.length) drawLogs(logs, id, () => found);
  const boxes = {};
  let curves = null;
  const draw = () => { if (curves) drawCurves(plots, boxes, curves, look, draw); };
  every(2000, async () => {
    [found, curves] = await Promise.all([state ? query("run", { id }) : found, isTraining ? (state ? query("run/curves", { id }) : first) : null]);
    drawHead(head, found);
    if (curves) {
      drawTiles(tiles, found, curves.last);
      draw();
    }
    if (["failed", "killed"].includes(found.state) && explained !== found.state && !found.foreign) {
      explained = found.state;
      drawError(error, found, await query("run/explain", { id }));
    } else if (LIVE.includes(found.state)) { explained = ""; error.replaceChildren(); }
    if (state !== found.state && !isTraining) await drawResult(result, found);
    state = found.state;
  });
}

function drawHead(box, found) {
  const live = LIVE.includes(found.state);
  const looks = JSON.stringify([found.state, found.title, document.documentElement.lang]);
  if (box.looks === looks) return;
  box.looks = looks;
  const act = (path, body = {}) => async () => { await api(path, { id: found.id, ...body }); box.looks = ""; };
  const actions = session.read_only ? [] : [
    found.state === "running" && button(word(found.kind === "train" ? "stopSave" : "stop"), act("run/stop"), "primary"),
    live && button(word("endNow"), async () => { if (await confirm(word("endNow"), word("endNowAsk"), word("endNow"))) await act("run/stop", { now: true })(); }),
    !live && !found.foreign && found.state !== "finished" && found.kind === "train" && button(word("resume"), act("run/resume"), "primary"),
    !live && found.step && link(word("chat"), "chat", { model: found.output }),
    !live && found.step && link(word("export"), "export", { model: found.output }),
    found.details?.values && link(word("useAgain"), "train", { from: found.id }),
    !live && button(word("delete"), () => remove(found), "danger"),
  ];
  box.replaceChildren(h("div", { class: "top" }, h("p", { class: "crumbs" }, h("a", { href: "#/runs" }, word("runs"))),
    h("h1", {}, found.title), h("div", { class: "row" }, badge(found.state), found.device === "sim" && tag(word("simulated"), "sim"), found.cards ? tag(word("cardsCount", { count: found.cards })) : null, h("span", { class: "soft" }, when(found.created))), row(...actions)),
    found.command ? command(found.command) : "");
}

function drawTiles(box, found, last) {
  const live = LIVE.includes(found.state);
  const share = last.seconds ? last.seconds / (last.seconds + (live ? last.seconds_left : 0) || 1) : 0;
  const bar = h("i");
  bar.style.width = `${100 * share}%`;
  const summary = found.summary ?? {};
  const tile = (name, value, more) => h("div", { class: "tile" }, h("span", {}, name), h("b", {}, value), more && h("small", {}, more));
  box.replaceChildren(
    live && last.step ? h("div", { class: "progress", role: "progressbar", "aria-label": word("progress"), "aria-valuenow": Math.round(100 * share), "aria-valuemin": 0, "aria-valuemax": 100 }, bar) : "",
    live && !last.step ? working(word(found.state === "queued" ? "waitingForCards" : "gettingReady")) : "",
    h("div", { class: "tiles" },
      tile(word("step"), whole(last.step), summary.total_steps ? word("of", { total: whole(summary.total_steps) }) : live && last.seconds_left !== undefined ? word("left", { time: duration(last.seconds_left) }) : ""),
      tile(word("loss"), figure(last.loss)),
      tile(word("evaluation"), figure(found.evaluation ?? summary.evaluation?.eval_loss)),
      tile(word("curve_speed"), last.items_per_second === undefined ? "–" : whole(last.items_per_second), word("tokensPerSecond")),
      tile(word("curve_memory"), last.memory_gib === undefined ? "–" : bytes(last.memory_gib * 2 ** 30), summary.device ?? ""),
      tile(word("time"), duration(found.seconds))),
    (summary.notes ?? []).length ? h("ul", { class: "plain-list" }, summary.notes.map((text) => h("li", {}, text))) : "");
}

function drawCurves(box, boxes, found, look, again) {
  const order = Object.keys(names);
  const wanted = Object.keys(found.curves).filter((name) => name !== "eval_loss" || !found.curves.loss).sort((a, b) => (order.indexOf(a) + 99) % 99 - (order.indexOf(b) + 99) % 99);
  const key = `${Object.keys(found.curves).join()} ${document.documentElement.lang}`;
  if (boxes.key !== key) {
    boxes.key = key;
    const tools = wanted.length ? h("div", { class: "row tools full" }, controls(look.smooth, look.log, (change) => { Object.assign(look, change); again(); })) : "";
    boxes.plots = Object.fromEntries(wanted.map((name) => [name, h("div", { class: "plot" })]));
    box.replaceChildren(tools, ...wanted.map((name) => {
      const together = TOGETHER[name]?.filter((each) => found.curves[each]) ?? [name];
      return card(curveName(name), together.length > 1 ? legend(together.map((each, at) => ({ name: curveName(each), kind: `c${at}` }))) : "", boxes.plots[name]);
    }));
  }
  for (const name of wanted) {
    const together = TOGETHER[name]?.filter((each) => found.curves[each]) ?? [name];
    const series = together.map((each, at) => ({ name: curveName(each), kind: `c${at}`, smooth: NOISY.includes(each), steps: found.curves[each][0], values: found.curves[each][1] }));
    chart(boxes.plots[name], { series, smooth: look.smooth, log: look.log && /loss|norm/.test(name), format: FORMATS[name], title: curveName(name) });
  }
}

function drawError(box, found, { explanations, line }) {
  const first = explanations[0];
  box.replaceChildren(h("section", { class: "card wrong", role: "alert" }, h("h2", {}, icon("warn"), word(found.state === "killed" ? "runKilled" : "runFailed")),
    first ? h("div", {}, h("p", {}, h("b", {}, first.meaning)), h("pre", { class: "quote" }, first.rank === null ? "" : `${word("rank")} ${first.rank}: `, first.line),
      list(word("causes"), first.causes), list(word("remedies"), first.remedies), explanations.slice(1).map((each) => h("p", { class: "soft" }, tag(each.code), " ", each.meaning)))
      : h("div", {}, h("p", {}, found.state === "killed" ? word("killedHint") : word("unknownError")), line && h("pre", { class: "quote" }, line))));
}

const list = (title, sentences) => (sentences.length ? h("div", {}, h("h3", {}, title), h("ul", {}, sentences.map((each) => h("li", {}, each)))) : null);

function drawLogs(box, id, current) {
  let name = "output", follow = true;
  const pre = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": word("log") });
  const tabs = h("div", { class: "tabs", role: "group", "aria-label": word("log") });
  const label = (each) => (each === "output" ? word("launcher") : each.replace(/rank(\d+)$/, (_, number) => `${word("rank")} ${number}`));
  pre.onscroll = () => { follow = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40; };
  const draw = async () => {
    const found = await query("run/log", { id, name });
    if (tabs.children.length !== found.logs.length) {
      tabs.replaceChildren(...found.logs.map((each) => h("button", { type: "button", "aria-pressed": String(each === name), onclick: (event) => {
        name = each;
        follow = true;
        for (const tab of tabs.children) tab.setAttribute("aria-pressed", String(tab === event.target));
        draw();
      } }, label(each))));
      tabs.hidden = found.logs.length < 2;
    }
    if (pre.textContent !== found.text) pre.textContent = found.text || word("emptyLog");
    if (follow) pre.scrollTop = pre.scrollHeight;
  };
  box.replaceChildren(card(word("log"), tabs, pre));
  let last = "";
  every(2500, async () => { const { state } = current(); if (LIVE.includes(state) || state !== last) await draw(); last = state; });
}

function notes(found) {
  const box = h("textarea", { rows: "3", placeholder: word("notesHint"), "aria-label": word("notes"), readonly: session.read_only }, found.notes);
  box.onchange = async () => { try { await api("run/notes", { id: found.id, text: box.value }); say(word("saved")); } catch (error) { say(error.message, true); } };
  return card(word("notes"), h("div", { class: "field" }, box));
}

function configuration(found) {
  const keys = Object.keys(found.configuration);
  const shown = (value) => (value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return h("details", { class: "card" }, h("summary", {}, h("h2", {}, word("configuration"))),
    found.checkpoints.length ? h("p", {}, word("checkpoints"), ": ", found.checkpoints.map((each) => [h("a", { href: address("chat", { model: each }) }, each.split("/").at(-1)), " "])) : "",
    table([{ title: word("option"), cell: (key) => h("code", {}, key) }, { title: word("value"), cell: (key) => shown(found.configuration[key]) }], keys));
}
