// Port: choose a project; see what keeps it from NPUs; take its migration hunk by hunk; prove it; tick off the rest.
import { api, button, card, command, duration, empty, every, field, h, link, page, pathInput, query, row, say, select, session, tag, whole, word, working } from "./ui.js";
import { verification } from "./result.js";

const STEPS = ["analysis", "migration", "verify", "todo"];
const LIVE = ["queued", "running", "stopping"];

export async function show(main, values) {
  const body = h("div"), tabs = h("div", { class: "tabs steps", role: "group", "aria-label": word("steps") });
  const state = { path: values.path ?? "", style: "portable", step: values.step ?? "analysis", dropped: {}, output: "" };
  const { input, around } = pathInput(state.path, { folders: true });
  input.placeholder = word("projectPlaceholder");
  const open = (path, step = "analysis") => { location.hash = `#/port?${new URLSearchParams({ path, step })}`; };
  const choose = h("form", { class: "row tools", onsubmit: (event) => { event.preventDefault(); if (input.value.trim()) open(input.value.trim()); } },
    field(word("project"), input, "", { around, class: "grow" }), h("button", { class: "button primary" }, word("analyze")));
  main.append(page(word("port"), word("portLead"), card("", choose), tabs, body));
  if (!state.path) return body.append(empty(word("noProject"), word("noProjectHint")));
  tabs.replaceChildren(...STEPS.map((step, at) => h("button", { type: "button", "aria-pressed": String(step === state.step), onclick: () => open(state.path, step) }, `${at + 1}. `, word(`port_${step}`))));
  state.output = sessionStorage.getItem(`npukit-port ${state.path}`) ?? `${state.path.replace(/\/+$/, "")}-npu`;
  body.append(working(word("reading")));
  const parts = { analysis, migration, verify, todo };
  const made = await (parts[state.step] ?? analysis)(state, open);
  body.replaceChildren(...made);
}

// What was found, with filters by file, rule, severity and effort.
async function analysis(state, open) {
  const found = await api("port/analyze", { path: state.path });
  const list = h("div");
  const unique = (get) => [...new Set(found.findings.map(get))].sort();
  const filters = { file: "", code: "", severity: "", effort: "" };
  const choose = (name, choices, label) => field(label, select([{ value: "", text: word("all") }, ...choices], "", (value) => { filters[name] = value; draw(); }));
  const rules = Object.fromEntries(found.findings.map((each) => [each.code, each.rule]));
  let limit = 100;
  const draw = () => {
    const effort = { migrate: (each) => each.fixable, short: (each) => !each.fixable && each.minutes > 0 && each.minutes <= 30, long: (each) => each.minutes > 30, none: (each) => !each.fixable && !each.minutes };
    const wanted = found.findings.filter((each) => (!filters.file || each.file === filters.file) && (!filters.code || each.code === filters.code) && (!filters.severity || each.severity === filters.severity) && (!filters.effort || effort[filters.effort](each)));
    list.replaceChildren(h("p", { class: "soft", role: "status" }, word("shownOf", { count: whole(wanted.length), total: whole(found.findings.length) })), ...wanted.slice(0, limit).map(finding),
      wanted.length > limit ? button(word("showMore", { count: wanted.length - limit }), () => { limit += 400; draw(); }) : "");
  };
  draw();
  const counts = ["error", "warning", "note"].map((severity) => ({ severity, count: found.findings.filter((each) => each.severity === severity).length }));
  return [
    card("", h("p", { class: "verdict" }, word(`verdict_${found.verdict.replaceAll(" ", "_")}`)), h("p", {}, found.summary),
      h("div", { class: "tiles" }, h("div", { class: "tile" }, h("span", {}, word("files")), h("b", {}, whole(found.files))), h("div", { class: "tile" }, h("span", {}, word("lines")), h("b", {}, whole(found.lines))),
        counts.map((each) => h("div", { class: "tile" }, h("span", {}, word(`severities_${each.severity}`)), h("b", {}, whole(each.count)))), h("div", { class: "tile" }, h("span", {}, word("byHand")), h("b", {}, found.hours ? duration(found.hours * 3600) : "–"))),
      row(button(word("seeMigration"), () => open(state.path, "migration"), "primary")), command(`npukit analyze ${state.path}`)),
    found.findings.length ? card(word("findings"), h("div", { class: "filters" }, choose("file", unique((each) => each.file ?? ""), word("file")), choose("code", unique((each) => each.code).map((code) => ({ value: code, text: `${code} ${rules[code] ?? ""}` })), word("rule")),
      choose("severity", ["error", "warning", "note"].map((value) => ({ value, text: word(`severity_${value}`) })), word("severity")), choose("effort", ["migrate", "short", "long", "none"].map((value) => ({ value, text: word(`effort_${value}`) })), word("effort"))), list) : empty(word("nothingFound"), word("nothingFoundHint")),
  ];
}

const finding = (each) => h("details", { class: "finding" },
  h("summary", {}, h("span", { class: `dot ${each.severity}`, title: word(`severity_${each.severity}`) }), tag(each.code), h("span", { class: "what" }, each.what), each.fixable ? tag(word("fixedByMigrate"), "good") : null, h("span", { class: "soft place" }, each.file ? `${each.file}:${each.cell !== undefined ? `[${each.cell}] ` : ""}${each.line}` : "")),
  each.evidence && h("pre", { class: "quote" }, each.evidence), each.why && h("p", {}, each.why), each.remedy && h("p", {}, h("b", {}, word("remedy")), " ", each.remedy));

// The diff of every file; a hunk that is dropped stays as it was.
async function migration(state, open) {
  const found = await api("port/migrate", { path: state.path, style: state.style });
  if (!found.changes.length) return [empty(word("nothingToMigrate"), word("nothingToMigrateHint"))];
  const { input, around } = pathInput(state.output, { folders: true, act: (value) => { state.output = value.trim(); } });
  const line = h("div");
  const tell = () => {
    const count = Object.values(state.dropped).reduce((sum, each) => sum + each.length, 0);
    line.replaceChildren(command(`npukit migrate ${state.path} --output ${input.value || "…"}`), count ? h("p", { class: "soft" }, word("droppedCount", { count })) : "");
  };
  input.oninput = tell;
  tell();
  const write = async (output) => {
    const answer = await api("port/write", { path: state.path, style: state.style, dropped: state.dropped, output });
    say(word("writtenFiles", { count: answer.files, folder: answer.output }));
    if (output) sessionStorage.setItem(`npukit-port ${state.path}`, output);
    if (output) open(state.path, "verify");
  };
  const files = found.changes.map((change) => fileDiff(change, state, tell));
  return [
    card("", h("p", {}, word("migrationSummary", { count: found.changes.length, files: found.files, left: found.left.length })),
      session.read_only ? "" : h("div", { class: "row tools" }, field(word("outputFolder"), input, "", { around, class: "grow" }), button(word("writeCopy"), () => write(input.value.trim()), "primary")), line),
    ...files,
  ];
}

function fileDiff(change, state, tell) {
  const hunks = change.hunks.map((hunk, number) => {
    const box = h("input", { type: "checkbox", checked: true });
    const last = hunk.before + hunk.rows.filter(([one]) => one !== null).length - 1;
    const codes = [...new Set(change.findings.filter((each) => each.line >= hunk.before && each.line <= last && each.cell === (hunk.cell ?? undefined)).map((each) => each.code))];
    const made = h("div", { class: "hunk" }, h("div", { class: "hunk-head" }, h("label", { class: "switch" }, box, h("span", {}, word("take"))),
      h("span", { class: "soft" }, hunk.cell === null ? word("linesFrom", { line: hunk.before }) : word("cellNumber", { cell: hunk.cell + 1 })), codes.map((code) => tag(code))), sides(hunk));
    box.onchange = () => {
      const dropped = new Set(state.dropped[change.file] ?? []);
      if (box.checked) dropped.delete(number); else dropped.add(number);
      state.dropped[change.file] = [...dropped];
      made.classList.toggle("dropped", !box.checked);
      tell();
    };
    return made;
  });
  return h("details", { class: "card file", open: true }, h("summary", {}, h("h2", {}, change.file, tag(word("hunkCount", { count: hunks.length })))), ...hunks);
}

function sides(hunk) {
  let before = hunk.before, after = hunk.after;
  const line = (one, other) => h("tr", { class: one === other ? "" : "changed" },
    h("td", { class: "line" }, one === null ? "" : String(before++)), h("td", { class: `code-cell ${one === other ? "" : one === null ? "none" : "old"}` }, one ?? ""),
    h("td", { class: "line" }, other === null ? "" : String(after++)), h("td", { class: `code-cell ${one === other ? "" : other === null ? "none" : "new"}` }, other ?? ""));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": word("diff") }, h("table", { class: "sides" }, h("tbody", {}, hunk.rows.map(([one, other]) => line(one, other)))));
}

// Run both projects, and compare their losses.
async function verify(state) {
  const choices = await api("machine/choices");
  const line = h("input", { type: "text", value: sessionStorage.getItem(`npukit-verify ${state.path}`) ?? "python train.py", spellcheck: "false" });
  const after = pathInput(state.output, { folders: true });
  const device = select(choices.devices.map((value) => ({ value, text: word(`device_${value}`) })), "sim");
  const count = h("input", { type: "number", min: "1", max: "64", value: "1" });
  const result = h("div");
  const watch = (id) => every(1500, async () => {
    const run = await query("run", { id });
    if (result.state === run.state) return;
    result.state = run.state;
    if (LIVE.includes(run.state)) return result.replaceChildren(card("", working(word("verifying")), command(run.command), row(link(word("seeRun"), "run", { id }))));
    const { data } = await query("run/result", { id });
    if (data) return result.replaceChildren(...verification(data), card("", command(run.command)));
    const log = await query("run/log", { id, name: "output" });
    result.replaceChildren(card(word("runFailed"), h("pre", { class: "log" }, log.text), row(link(word("seeRun"), "run", { id }))));
  });
  const start = button(word("startVerify"), async () => {
    sessionStorage.setItem(`npukit-verify ${state.path}`, line.value);
    const { id } = await api("port/verify", { path: state.path, output: after.input.value, command: line.value, device: device.value, devices: Number(count.value) });
    watch(id);
  }, "primary");
  const before = (await api("runs")).find((each) => each.kind === "verify" && each.command.includes(` ${state.path} `));
  if (before) watch(before.id);
  return [card("", h("div", { class: "fields" }, field(word("migratedFolder"), after.input, "", { around: after.around }), field(word("trainCommand"), line, word("trainCommandHint")), field(word("device"), device), field(word("count"), count)), session.read_only ? "" : row(start)), result];
}

// What migrate leaves, to tick off.
async function todo(state) {
  const [found, ticked] = await Promise.all([api("port/migrate", { path: state.path, style: state.style }), query("port/todo", { path: state.path })]);
  if (!found.left.length) return [empty(word("nothingLeft"), word("nothingLeftHint"))];
  let done = new Set(ticked.done);
  const bar = h("i"), told = h("p", { class: "soft", role: "status" });
  const key = (each) => `${each.code} ${each.file ?? ""} ${each.evidence || each.what}`.slice(0, 1900);
  const count = () => { const ready = found.left.filter((each) => done.has(key(each))).length; told.textContent = word("todoCount", { done: ready, all: found.left.length }); bar.style.width = `${(100 * ready) / found.left.length}%`; };
  const item = (each) => {
    const box = h("input", { type: "checkbox", checked: done.has(key(each)), disabled: session.read_only, "aria-label": each.what });
    const made = h("li", { class: box.checked ? "done" : "" }, box, finding(each));
    box.onchange = async () => { done = new Set((await api("port/todo", { path: state.path, key: key(each), done: box.checked })).done); made.classList.toggle("done", box.checked); count(); };
    return made;
  };
  count();
  return [card(word("port_todo"), told, h("div", { class: "progress" }, bar), h("ul", { class: "todo" }, found.left.map(item)))];
}
