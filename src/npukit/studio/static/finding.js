// A finding of analyze or doctor: what it is in one line, why and what to do when it is opened.
import { h, sentence, tag, word } from "./dom.js";

const place = ({ file, line, cell }) => (file ? `${file}:${cell === undefined ? "" : `[${cell}] `}${line}` : "");

export const finding = (each) =>
  h(
    "details",
    { class: "finding" },
    h(
      "summary",
      {},
      h("span", { class: `dot ${each.severity}`, title: word(`severity_${each.severity}`) }),
      tag(each.code),
      h("span", { class: "what" }, sentence(each.what)),
      each.fixable && tag(word("fixedByMigrate"), "good"),
      h("span", { class: "soft place" }, place(each)),
    ),
    h(
      "div",
      { class: "more" },
      each.evidence && h("pre", { class: "quote" }, each.evidence),
      each.why && h("p", {}, sentence(each.why)),
      each.remedy && h("p", {}, h("b", {}, word("remedy")), " ", sentence(each.remedy)),
    ),
  );
