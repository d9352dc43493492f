// Port, second step: the migration as a diff of every file; a hunk that is dropped stays as it was.
import { button, card, command, empty, h, say, tag, word } from "./dom.js";
import { checkbox, field, pathInput, select } from "./fields.js";
import { go } from "./pages.js";
import { api, session } from "./server.js";

export async function migration({ path, style, output }) {
  const found = await api("port/migrate", { path, style });
  if (!found.changes.length) return [empty(word("nothingToMigrate"), word("nothingToMigrateHint"))];
  const dropped = {}; // numbers of hunks, by file
  const { input, around } = pathInput(output.get(), { folders: true });
  const line = h("div");
  const tell = () => {
    const count = Object.values(dropped).reduce((sum, each) => sum + each.size, 0);
    line.replaceChildren(
      command(
        `npukit migrate ${path} --output ${input.value || "…"}${style === "portable" ? "" : ` --style ${style}`}`,
      ),
      count ? h("p", { class: "soft" }, word("droppedCount", { count })) : "",
    );
  };
  const write = async () => {
    const numbers = Object.fromEntries(Object.entries(dropped).map(([file, each]) => [file, [...each]]));
    const answer = await api("port/write", { path, style, dropped: numbers, output: input.value.trim() });
    output.set(input.value.trim());
    say(word("writtenFiles", { count: answer.files, folder: answer.output }));
    go("port", { path, step: "verify" });
  };
  const styles = ["portable", "npu"].map((value) => ({ value, text: word(`style_${value}`) }));
  const chooseStyle = select(styles, style, (value) => go("port", { path, step: "migration", style: value }));
  input.oninput = tell;
  tell();
  return [
    card(
      "",
      h(
        "p",
        {},
        word("migrationSummary", { count: found.changes.length, files: found.files, left: found.left.length }),
      ),
      h(
        "div",
        { class: "row tools" },
        field(word("style"), chooseStyle),
        !session.read_only && field(word("outputFolder"), input, "", { around, kind: "grow" }),
        !session.read_only && button(word("writeCopy"), write, "primary"),
      ),
      line,
    ),
    ...found.changes.map((change) => fileDiff(change, (dropped[change.file] = new Set()), tell)),
  ];
}

const fileDiff = (change, dropped, changed) =>
  h(
    "details",
    { class: "card file", open: true },
    h("summary", {}, h("h2", {}, change.file, tag(word("hunkCount", { count: change.hunks.length })))),
    change.hunks.map((hunk, number) =>
      hunkDiff(hunk, codes(hunk, change.findings), (isTaken) => {
        if (isTaken) dropped.delete(number);
        else dropped.add(number);
        changed();
      }),
    ),
  );

function hunkDiff(hunk, rules, take) {
  const box = h("input", { type: "checkbox", checked: true });
  const where =
    hunk.cell === null ? word("linesFrom", { line: hunk.before }) : word("cellNumber", { cell: hunk.cell + 1 });
  const made = h(
    "div",
    { class: "hunk" },
    h(
      "div",
      { class: "hunk-head" },
      checkbox(word("take"), box),
      h("span", { class: "soft" }, where),
      rules.map((code) => tag(code)),
    ),
    sides(hunk),
  );
  box.onchange = () => {
    made.classList.toggle("dropped", !box.checked);
    take(box.checked);
  };
  return made;
}

// The rules that a hunk follows.
function codes({ before, rows, cell }, findings) {
  const last = before + rows.filter(([old]) => old !== null).length - 1;
  const mine = findings.filter((each) => each.line >= before && each.line <= last && each.cell === (cell ?? undefined));
  return [...new Set(mine.map((each) => each.code))];
}

function sides({ before, after, rows }) {
  const side = (text, number, kind) => [
    h("td", { class: "line" }, text === null ? "" : String(number)),
    h("td", { class: kind }, text ?? ""),
  ];
  const line = ([old, fresh]) => {
    const isSame = old === fresh;
    const cells = [
      side(old, before, isSame ? "" : old === null ? "none" : "old"),
      side(fresh, after, isSame ? "" : fresh === null ? "none" : "new"),
    ];
    before += old !== null;
    after += fresh !== null;
    return h("tr", { class: isSame ? "" : "changed" }, cells);
  };
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": word("diff") },
    h("table", { class: "sides" }, h("tbody", {}, rows.map(line))),
  );
}
