// Markdown as elements. Text of a model only ever becomes text nodes: whatever it writes, it cannot become markup.
const BLOCK = /^(#{1,6} |```|~~~|> ?|\s*([-*+]|\d{1,9}[.)]) |\s*([-*_])(\s*\3){2,}\s*$)/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)]) +(.*)$/;
const INLINE = /(`+)([^]*?[^`])\1(?!`)|\*\*([^]+?)\*\*|__([^]+?)__|\*([^\s*][^*]*?)\*|(?<![\w_])_([^\s_][^_]*?)_(?![\w_])|~~([^]+?)~~|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]+)/;
const KEYWORDS = new Set(("and as async await break case catch class const continue def default del do elif else enum except export extends " +
  "false False finally fn for from func function global if impl import in interface is lambda let match mut namespace new nil None not null or " +
  "package pass print private public pub raise return self static struct super switch this throw true True try type typeof use using var void " +
  "while with yield int float double bool char string str SELECT FROM WHERE echo fi then done").split(" "));
const CODE = /(\/\/[^\n]*|#[^\n]*|\/\*[^]*?\*\/)|("""[^]*?"""|'''[^]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(\b\d[\d_.xa-fA-F]*\b)|([A-Za-z_]\w*)(\s*\()?/g;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

// The elements of a text; `copyButton(text)` makes the button of a piece of code.
export function render(text, copyButton) {
  const made = document.createDocumentFragment();
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(/^\s*(```+|~~~+)\s*([\w+#.-]*)/);
    if (!line.trim()) { at++; }
    else if (fence) { at = code(lines, at, fence, made, copyButton); }
    else if (RULE.test(line)) { made.append(element("hr")); at++; }
    else if (/^#{1,6} /.test(line)) {
      const level = line.match(/^#+/)[0].length;
      made.append(element(`h${Math.min(level, 4)}`, {}, inline(line.slice(level + 1).replace(/\s#+\s*$/, ""))));
      at++;
    }
    else if (/^> ?/.test(line)) {
      const quoted = [];
      while (at < lines.length && /^> ?/.test(lines[at])) quoted.push(lines[at++].replace(/^> ?/, ""));
      made.append(element("blockquote", {}, render(quoted.join("\n"), copyButton)));
    }
    else if (ITEM.test(line)) { at = list(lines, at, made, copyButton); }
    else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "")) { at = table(lines, at, made); }
    else {
      const words = [];
      while (at < lines.length && lines[at].trim() && (!words.length || !BLOCK.test(lines[at]))) words.push(lines[at++]);
      made.append(element("p", {}, inline(words.join("\n"))));
    }
  }
  return made;
}

function code(lines, at, [, mark, language], made, copyButton) {
  const inside = [];
  for (at++; at < lines.length && !lines[at].trim().startsWith(mark); at++) inside.push(lines[at]);
  const text = inside.join("\n");
  const bar = element("div", { class: "bar" }, element("span", {}, language || "text"), copyButton(text));
  made.append(element("div", { class: "code" }, bar, element("pre", {}, element("code", {}, coloured(text, language)))));
  return at + 1;
}

function coloured(text, language) {
  if (!language || text.length > 20000) return document.createTextNode(text);
  const made = document.createDocumentFragment();
  let last = 0;
  for (const found of text.matchAll(CODE)) {
    const [all, comment, string, number, word, call] = found;
    if (comment?.startsWith("#") && /^(c|cpp|js|javascript|ts|typescript|java|css)$/i.test(language)) continue;
    if (comment?.startsWith("//") && /^(python|py|bash|sh|yaml)$/i.test(language)) continue;
    const kind = comment ? "c" : string ? "s" : number ? "n" : KEYWORDS.has(word) ? "k" : call ? "f" : "";
    if (!kind) continue;
    made.append(text.slice(last, found.index), element("span", { class: kind }, word ?? all));
    last = found.index + (word ?? all).length;
  }
  made.append(text.slice(last));
  return made;
}

function list(lines, at, made, copyButton) {
  const [, indent, mark] = lines[at].match(ITEM);
  const ordered = /\d/.test(mark);
  const all = element(ordered ? "ol" : "ul", ordered && parseInt(mark) !== 1 ? { start: parseInt(mark) } : {});
  while (at < lines.length) {
    const found = lines[at].match(ITEM);
    if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== ordered || RULE.test(lines[at])) break;
    const inner = [found[3]];
    const deep = indent.length + 2;
    for (at++; at < lines.length; at++) {
      const blank = !lines[at].trim();
      const deeper = lines[at].search(/\S/) >= deep;
      if (!deeper && !(blank && (lines[at + 1] ?? "").search(/\S/) >= deep)) break;
      inner.push(blank ? "" : lines[at].replace(new RegExp(`^\\s{0,${indent.length + found[2].length + 1}}`), ""));
    }
    all.append(element("li", {}, render(inner.join("\n"), copyButton)));
    let next = at;
    while (next < lines.length && !lines[next].trim()) next++;
    if (next > at && ITEM.test(lines[next] ?? "")) at = next;
  }
  made.append(all);
  return at;
}

function table(lines, at, made) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, name) => element("tr", {}, ...cells(line).map((cell) => element(name, {}, inline(cell))));
  const head = element("thead", {}, row(lines[at], "th"));
  const body = element("tbody");
  for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); at++) body.append(row(lines[at], "td"));
  made.append(element("div", { class: "table" }, element("table", {}, head, body)));
  return at;
}

function inline(text) {
  const made = document.createDocumentFragment();
  let found;
  while ((found = text.match(INLINE))) {
    made.append(text.slice(0, found.index));
    const [all, , span, bold, bold2, italic, italic2, gone, name, address, bare] = found;
    if (span !== undefined) made.append(element("code", {}, span.trim()));
    else if (bold ?? bold2) made.append(element("strong", {}, inline(bold ?? bold2)));
    else if (italic ?? italic2) made.append(element("em", {}, inline(italic ?? italic2)));
    else if (gone) made.append(element("del", {}, inline(gone)));
    else made.append(element("a", { href: address ?? bare, target: "_blank", rel: "noopener noreferrer nofollow" }, name ?? bare));
    text = text.slice(found.index + all.length);
  }
  made.append(text);
  return made;
}
