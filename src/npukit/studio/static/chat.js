// Chat: the chat page of `npukit serve`, one model or two side by side.
import { api, button, command, empty, every, h, link, page, query, row, session, tag, word, working } from "./ui.js";
import { form } from "./verb.js";

const KEPT = "npukit-chats";

export async function show(main, { model }) {
  const [found, choices, runs, forms] = await Promise.all([api("models"), api("machine/choices"), api("runs"), api("forms")]);
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
  const loaded = (id) => { load.open = false; open([...shown, id].slice(-2)); };
  const others = live.filter((each) => !shown.includes(each.id));
  const load = h("details", { open: !shown.length || !!model }, h("summary", {}, h("b", {}, word("loadModel"))), form("serve", forms.serve, { model }, found, choices, loaded, word("loadModel")),
    row(...others.map((each) => button(word("openChat", { name: each.title }), () => open([...shown, each.id].slice(-2))))));
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
