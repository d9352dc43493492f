// Chat: the chat page of `npukit serve`, with one model or with two side by side.
import { LIVE, button, command, empty, h, page, row, tag, word, working } from "./dom.js";
import { every, link } from "./pages.js";
import { api, query, session } from "./server.js";
import { verbForm } from "./verb_form.js";

const KEPT = "npukit-chats";
const MAX_MODELS = 2;

export async function show(main, { model }) {
  const [found, choices, runs, forms] = await Promise.all([
    api("models"),
    api("machine/choices"),
    api("runs"),
    api("forms"),
  ]);
  const live = runs.filter((each) => each.kind === "serve" && LIVE.includes(each.state));
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]").filter((id) => live.some((each) => each.id === id));
  let shown = kept.length ? kept : live.slice(0, 1).map((each) => each.id);
  const frames = h("div", { class: "frames" });
  const both = askBoth(frames);
  const open = (ids) => {
    shown = ids.slice(-MAX_MODELS);
    sessionStorage.setItem(KEPT, JSON.stringify(shown));
    frames.replaceChildren(
      ...(shown.length
        ? shown.map((id) => frame(id, () => open(shown.filter((each) => each !== id))))
        : [empty(word("noChat"), word("noChatHint"))]),
    );
    frames.classList.toggle("two", shown.length > 1);
    both.hidden = shown.length < MAX_MODELS;
  };
  const form = verbForm("serve", forms.serve, {
    found,
    choices,
    values: { model },
    action: word("loadModel"),
    started: (id) => {
      load.open = false;
      open([...shown, id]);
    },
  });
  const others = live
    .filter((each) => !shown.includes(each.id))
    .map((each) => button(word("openChat", { name: each.title }), () => open([...shown, each.id])));
  const load = h(
    "details",
    { class: "load", open: !shown.length || model !== undefined },
    h("summary", {}, h("b", {}, word("loadModel"))),
    form,
    row(...others),
  );
  main.append(page(word("chat"), word("chatLead"), !session.read_only && load, both, frames));
  open(shown);
}

// A line that asks every model on the page the same.
function askBoth(frames) {
  const prompt = h("input", {
    type: "text",
    placeholder: word("askBoth"),
    "aria-label": word("askBoth"),
    autocomplete: "off",
  });
  const form = h(
    "form",
    { class: "row tools", hidden: true },
    prompt,
    h("button", { class: "button primary" }, word("send")),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    for (const each of frames.querySelectorAll("iframe"))
      each.contentWindow.postMessage({ ask: prompt.value }, location.origin);
    prompt.value = "";
  };
  return form;
}

function frame(id, close) {
  const head = h("div", { class: "frame-head" }),
    body = h("div", { class: "frame-body" }, working(word("loadingModel")));
  const box = h("section", { class: "card frame" }, head, body);
  let shown = "";
  every(1500, async () => {
    if (shown === "ready" || !box.isConnected) return;
    const { state, ready } = await query("chat/ready", { id });
    const now = ready ? "ready" : state;
    if (now === shown) return;
    shown = now;
    const run = await query("run", { id });
    const unload = button(
      word("unload"),
      async () => {
        await api("run/stop", { id });
        close();
      },
      "small",
    );
    head.replaceChildren(
      h("b", {}, run.title),
      run.device === "sim" ? tag(word("simulated"), "sim") : "",
      h("span", { class: "space" }),
      link(word("log"), "run", { id }, "plain-link"),
      session.read_only ? "" : unload,
    );
    body.replaceChildren(...content(now, run));
  });
  return box;
}

function content(state, { id, title, command: line }) {
  if (state === "ready") return [h("iframe", { src: `served/${id}/`, title: word("chatWith", { name: title }) })];
  if (!LIVE.includes(state)) return [empty(word("chatEnded"), word("chatEndedHint"), link(word("log"), "run", { id }))];
  return [working(word(state === "queued" ? "waitingForCards" : "loadingModel")), command(line)];
}
