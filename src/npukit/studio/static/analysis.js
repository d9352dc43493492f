// Port, first step: what was found, with filters by file, rule, severity and effort.
import { button, card, command, empty, h, row, tile, word } from "./dom.js";
import { field, select } from "./fields.js";
import { finding } from "./finding.js";
import { duration, whole } from "./format.js";
import { go } from "./pages.js";
import { api } from "./server.js";

const FEW = 100;
const MORE = 400; // findings that are shown at first, and by a click
const SEVERITIES = ["error", "warning", "note"];
const EFFORTS = {
  migrate: (each) => each.fixable,
  short: (each) => !each.fixable && each.minutes > 0 && each.minutes <= 30,
  long: (each) => each.minutes > 30,
  none: (each) => !each.fixable && !each.minutes,
};

export async function analysis({ path }) {
  const found = await api("port/analyze", { path });
  return [
    summary(found, path),
    found.findings.length ? list(found.findings) : empty(word("nothingFound"), word("nothingFoundHint")),
  ];
}

function summary({ verdict, files, lines, hours, findings }, path) {
  const counts = SEVERITIES.map((severity) =>
    tile(word(`severities_${severity}`), whole(findings.filter((each) => each.severity === severity).length)),
  );
  const fixable = findings.filter((each) => each.fixable).length;
  return card(
    "",
    h("p", { class: "verdict" }, word(`verdict_${verdict.replaceAll(" ", "_")}`)),
    h(
      "div",
      { class: "tiles" },
      tile(word("files"), whole(files), word("lineCount", { count: whole(lines) })),
      ...counts,
      tile(word("byMigrate"), whole(fixable)),
      tile(word("byHand"), hours ? duration(hours * 3600) : "–"),
    ),
    row(button(word("seeMigration"), () => go("port", { path, step: "migration" }), "primary")),
    command(`npukit analyze ${path}`),
  );
}

function list(findings) {
  const filters = { file: "", code: "", severity: "", effort: "" };
  const matches = (each) =>
    ["file", "code", "severity"].every((name) => !filters[name] || each[name] === filters[name]) &&
    (!filters.effort || EFFORTS[filters.effort](each));
  const body = h("div");
  let limit = FEW;
  const draw = () => {
    const wanted = findings.filter(matches);
    const more = wanted.length - limit;
    body.replaceChildren(
      h(
        "p",
        { class: "soft", role: "status" },
        word("shownOf", { count: whole(wanted.length), total: whole(findings.length) }),
      ),
      h("div", { class: "findings" }, wanted.slice(0, limit).map(finding)),
      more > 0
        ? button(word("showMore", { count: more }), () => {
            limit += MORE;
            draw();
          })
        : "",
    );
  };
  const choose = (name, choices) =>
    field(
      word(name === "code" ? "rule" : name),
      select([{ value: "", text: word("all") }, ...choices], "", (value) => {
        filters[name] = value;
        limit = FEW;
        draw();
      }),
    );
  const names = new Map(findings.map((each) => [each.code, each.rule]));
  const files = [...new Set(findings.map((each) => each.file ?? ""))].sort();
  draw();
  return card(
    word("findings"),
    h(
      "div",
      { class: "filters" },
      choose("file", files),
      choose(
        "code",
        [...names].sort().map(([value, name]) => ({ value, text: `${value} ${name}` })),
      ),
      choose(
        "severity",
        SEVERITIES.map((value) => ({ value, text: word(`severity_${value}`) })),
      ),
      choose(
        "effort",
        Object.keys(EFFORTS).map((value) => ({ value, text: word(`effort_${value}`) })),
      ),
    ),
    body,
  );
}
