// What doctor found: its checks, the problems in them, and the commands that fix those.
import { command, h, sentence, tag, word } from "./dom.js";

const BADGES = { good: "finished", warning: "stopped", error: "failed", skipped: "queued" };

export const doctor = ({ good, checks, command: line }) => [
  h("p", { class: "verdict" }, word(good ? "machineGood" : "machineBad")),
  h("ul", { class: "checks" }, checks.map(check)),
  command(line),
];

const check = ({ check: title, state, says, findings }) =>
  h(
    "li",
    { class: "check" },
    h("span", { class: `badge ${BADGES[state]}` }, word(`check_${state}`)),
    h("div", {}, h("b", {}, title), " ", h("span", { class: "soft" }, sentence(says)), findings.map(problem)),
  );

const problem = ({ code, what, why, remedy, commands }) =>
  h(
    "div",
    { class: "finding" },
    h("p", {}, tag(code), " ", h("b", {}, sentence(what))),
    why && h("p", { class: "soft" }, sentence(why)),
    remedy && h("p", {}, sentence(remedy)),
    commands.map(command),
  );
