// One run: how far it is, its curves, the log of every rank, the first error explained, notes and configuration.
import {
  LIVE,
  badge,
  bullets,
  button,
  card,
  command,
  h,
  meter,
  row,
  say,
  table,
  tag,
  tile,
  word,
  working,
} from "./dom.js";
import { curvePanel, curvesOf } from "./curves.js";
import { confirm } from "./dialog.js";
import { bytes, duration, figure, plain, when, whole } from "./format.js";
import { address, every, go, link, toRuns } from "./pages.js";
import { drawResult } from "./result.js";
import { runAnswers } from "./run_answers.js";
import { runError } from "./run_error.js";
import { runLogs } from "./run_logs.js";
import { api, query, session } from "./server.js";

export async function show(main, { id }) {
  const first = curvesOf(id).catch(() => null); // while the rest is asked for
  let found = await query("run", { id });
  const isTraining = Object.keys(found.configuration).length > 0 || found.step !== undefined;
  const [head, error, tiles, result, answers, logs] = Array.from({ length: 6 }, () => h("div"));
  const panel = curvePanel(() => refresh());
  main.append(
    h(
      "div",
      { class: "page" },
      head,
      error,
      tiles,
      result,
      panel.box,
      answers,
      logs,
      isTraining && notes(found),
      isTraining && configuration(found),
    ),
  );
  if (found.has_answers) runAnswers(answers, id, () => found.state);
  if (found.logs.length) runLogs(logs, id, () => found.state);
  let state = "";
  const refresh = every(2000, async () => {
    const { range } = panel.view;
    const asked = state ? [query("run", { id }), isTraining && curvesOf(id, range)] : [found, first];
    const curves = await asked[1];
    found = await asked[0];
    const isNew = state !== found.state;
    state = found.state;
    if (isNew) head.replaceChildren(...heading(found, () => refresh()));
    if (curves && isTraining) {
      tiles.replaceChildren(...progress(found, curves.last));
      if (range === panel.view.range) panel.draw([{ title: found.title, curves: curves.curves }]); // else it is too late
    }
    if (!isNew) return;
    error.replaceChildren(...(await runError(found)));
    if (!isTraining) await drawResult(result, found);
  });
}

function heading(found, refresh) {
  const act = async (path, body = {}) => {
    await api(path, { id: found.id, ...body });
    await refresh();
  };
  const isLive = LIVE.includes(found.state);
  const isModel = !isLive && found.step;
  const end = async () => {
    if (await confirm(word("endNow"), word("endNowAsk"), word("endNow"))) await act("run/stop", { now: true });
  };
  const actions = [
    found.state === "running" &&
      button(word(found.kind === "train" ? "stopSave" : "stop"), () => act("run/stop"), "primary"),
    isLive && button(word("endNow"), end),
    !isLive && found.can_resume && button(word("resume"), () => act("run/resume"), "primary"),
    isModel && link(word("chat"), "chat", { model: found.output }),
    isModel && link(word("export"), "export", { model: found.output }),
    isModel && link(word("performance"), "performance", { profiles: found.output }),
    found.details.values && link(word("useAgain"), "train", { from: found.id }),
    !isLive && button(word("delete"), () => remove(found), "danger"),
  ];
  return [
    h(
      "div",
      { class: "top" },
      toRuns(),
      h("h1", {}, found.title),
      row(
        badge(found.state),
        found.device === "sim" && tag(word("simulated"), "sim"),
        found.cards > 0 && tag(word("cardsCount", { count: found.cards })),
        h("span", { class: "soft" }, when(found.created)),
      ),
      !session.read_only && row(...actions),
    ),
    found.command ? command(found.command) : "",
  ];
}

function progress(found, last) {
  const isLive = LIVE.includes(found.state);
  const summary = found.summary ?? {};
  const left = isLive && last.seconds_left !== undefined ? word("left", { time: duration(last.seconds_left) }) : "";
  const total = summary.total_steps ? word("of", { total: whole(summary.total_steps) }) : left;
  const share = last.seconds ? last.seconds / (last.seconds + (last.seconds_left ?? 0) || 1) : 0;
  return [
    isLive &&
      (last.step
        ? meter(share, word("progress"))
        : working(word(found.state === "queued" ? "waitingForCards" : "gettingReady"))),
    h(
      "div",
      { class: "tiles" },
      tile(word("step"), whole(last.step), total),
      tile(word("loss"), figure(last.loss)),
      tile(word("evaluation"), figure(last.eval_loss ?? found.evaluation)),
      tile(
        word("curve_speed"),
        last.items_per_second === undefined ? "–" : whole(last.items_per_second),
        word("tokensPerSecond"),
      ),
      tile(
        word("curve_memory"),
        last.memory_gib === undefined ? "–" : bytes(last.memory_gib * 2 ** 30),
        summary.device,
      ),
      tile(word("time"), duration(found.seconds ?? last.seconds)),
    ),
    bullets(summary.notes ?? []),
  ].filter(Boolean);
}

function notes(found) {
  const box = h(
    "textarea",
    { rows: "3", placeholder: word("notesHint"), "aria-label": word("notes"), readonly: session.read_only },
    found.notes,
  );
  box.onchange = () =>
    api("run/notes", { id: found.id, text: box.value }).then(
      () => say(word("saved")),
      (error) => say(error.message, true),
    );
  return card(word("notes"), h("div", { class: "field" }, box));
}

function configuration({ configuration: values, checkpoints }) {
  const names = checkpoints.map((each) => [
    h("a", { href: address("chat", { model: each }) }, each.split("/").at(-1)),
    " ",
  ]);
  const columns = [
    { title: word("option"), cell: (key) => h("code", {}, key) },
    { title: word("value"), cell: (key) => plain(values[key]) },
  ];
  return h(
    "details",
    { class: "card" },
    h("summary", {}, h("h2", {}, word("configuration"))),
    names.length > 0 && h("p", {}, word("checkpoints"), ": ", names),
    table(columns, Object.keys(values)),
  );
}

async function remove(found) {
  const files = h("input", { type: "checkbox" });
  const more =
    found.step !== undefined &&
    !found.foreign &&
    h("label", { class: "switch" }, files, h("span", {}, word("deleteFiles", { folder: found.output })));
  const text = word(found.foreign ? "deleteFolderAsk" : "deleteAsk", { name: found.title });
  if (!(await confirm(word("deleteRun"), text, word("delete"), more))) return;
  await api("run/delete", { id: found.id, files: found.foreign || files.checked });
  say(word("deleted"));
  go("runs");
}
