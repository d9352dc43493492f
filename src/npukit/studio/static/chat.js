// Chat: the chat page of `npukit serve`, one model or two side by side.
import { api, button, command, empty, every, field, h, link, page, pathInput, query, row, select, session, tag, word, working } from "./ui.js";

const KEPT = "npukit-chats";

export async function show(main, { model }) {
  const [found, choices, runs] = await Promise.all([api("models"), api("machine/choices"), api("runs")]);
  const live = runs.filter((each) => each.kind === "serve" && ["queued", "running"].includes(each.state));
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]").filter((id) => live.some((each) => each.id === id));
  let shown = kept.length ? kept : live.slice(0, 1).map((each) => each.id);
  const frames = h("div", { class: "frames" }), both = h("form", { class: "row tools", hidden: true });
  const open = (ids) => {
    shown = ids;
    sessionStorage.setItem(KEPT, JSON.stringify(ids));
    frames.replaceChildren(...ids.map((id) => frame(id, () => open(shown.filter((each) => each !== id)))));
    frames.classList.toggle("two", ids.length > 1);
    both.hidden = ids.length < 2;
    if (!ids.length) frames.replaceChildren(empty(word("noChat"), word("noChatHint")));
  };
  const ask = h("input", { type: "text", placeholder: word("askBoth"), "aria-label": word("askBoth"), autocomplete: "off" });
  both.append(ask, h("button", { class: "button primary" }, word("send")));
  both.onsubmit = (event) => {
    event.preventDefault();
    for (const each of frames.querySelectorAll("iframe")) each.contentWindow.postMessage({ ask: ask.value }, location.origin);
    ask.value = "";
  };
  const chosen = pathInput(model ?? "", { found: [...found.models, ...found.adapters], folders: true });
  chosen.input.placeholder = found.adapters[0] ?? found.models[0] ?? word("modelFolder");
  const adapter = pathInput("", { found: found.adapters, folders: true });
  const device = select(choices.devices.map((value) => ({ value, text: word(`device_${value}`) })), choices.devices[0]);
  const start = async () => {
    const adapters = adapter.input.value.trim() ? adapter.input.value.split(",").map((each) => each.trim()) : [];
    const { id } = await api("chat/start", { model: chosen.input.value.trim(), device: device.value, adapters });
    load.open = false;
    open([...shown, id].slice(-2));
  };
  const others = live.filter((each) => !shown.includes(each.id));
  const load = h("details", { class: "card", open: !shown.length || !!model }, h("summary", {}, h("h2", {}, word("loadModel"))), h("div", { class: "fields" }, field(word("model"), chosen.input, word("chatModelHint"), { around: chosen.around }), field(word("adapters"), adapter.input, word("adaptersHint"), { around: adapter.around }), field(word("device"), device)),
      row(button(word("loadModel"), start, "primary"), ...others.map((each) => button(word("openChat", { name: each.title }), () => open([...shown, each.id].slice(-2))))));
  main.append(page(word("chat"), word("chatLead"), session.read_only ? "" : load, both, frames));
  open(shown);
}

function frame(id, close) {
  const body = h("div", { class: "frame-body" }, working(word("loadingModel")));
  const head = h("div", { class: "frame-head" });
  const box = h("section", { class: "card frame" }, head, body);
  let is = "";
  every(1500, async () => {
    if (is === "ready" || !box.isConnected) return;
    const { state, ready } = await query("chat/ready", { id });
    const now = ready ? "ready" : state;
    if (now === is) return;
    is = now;
    const run = await query("run", { id });
    head.replaceChildren(h("b", {}, run.title), run.device === "sim" ? tag(word("simulated"), "sim") : "", h("span", { class: "space" }), link(word("log"), "run", { id }, "plain-link"), session.read_only ? "" : button(word("unload"), async () => { await api("run/stop", { id }); close(); }, "small"));
    if (ready) body.replaceChildren(h("iframe", { src: `served/${id}/`, title: word("chatWith", { name: run.title }) }));
    else if (["failed", "killed", "stopped", "finished"].includes(state)) body.replaceChildren(empty(word("chatEnded"), word("chatEndedHint"), link(word("log"), "run", { id })));
    else body.replaceChildren(working(word(state === "queued" ? "waitingForCards" : "loadingModel")), command(run.command));
  });
  return box;
}
