// The studio: which page is shown, and in which language. A page's module is loaded when it is first shown.
import { h, icon, problem, word } from "./dom.js";
import { learn, look, onLook, switchLanguage, switchTheme } from "./look.js";
import { leave } from "./pages.js";
import { api, session } from "./server.js";
import { WORDS } from "./words.js";

const GROUPS = [
  ["machine"],
  ["port"],
  ["data", "train", "runs"],
  ["chat", "eval", "export"],
  ["precision", "performance"],
];
const MODULES = { eval: "verb", export: "verb", precision: "verb", performance: "verb" }; // else that of the page's name
const IN_RUNS = ["run", "compare"]; // pages below that of the runs
const PAGES = [...GROUPS.flat(), ...IN_RUNS];
const $ = (id) => document.getElementById(id);
let shown = 0;

function where() {
  const [name, values] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: PAGES.includes(name) ? name : "machine", values: Object.fromEntries(new URLSearchParams(values)) };
}

function drawNav(current) {
  const isCurrent = (name) => name === current || (name === "runs" && IN_RUNS.includes(current));
  const link = (name) =>
    h("a", { href: `#/${name}`, "aria-current": isCurrent(name) && "page" }, icon(name), word(name));
  $("nav").setAttribute("aria-label", word("pages"));
  $("nav").replaceChildren(...GROUPS.map((names) => h("div", {}, names.map(link))));
}

async function show() {
  if (location.hash === "#main") return;
  const { name, values } = where();
  const mine = ++shown;
  leave();
  openMenu(false);
  drawNav(name);
  document.title = `${word(name)} · npukit studio`;
  const main = h("div");
  $("main").replaceChildren(main);
  $("main").scrollTop = 0;
  try {
    const module = await import(`./${MODULES[name] ?? name}.js`);
    if (mine === shown) await module.show(main, values, name);
  } catch (error) {
    if (mine === shown) main.append(problem(error.message));
  }
}

const openMenu = (isOpen) => {
  $("nav").classList.toggle("open", isOpen);
  $("menu").setAttribute("aria-expanded", isOpen);
};
$("menu").onclick = () => openMenu(!$("nav").classList.contains("open"));
$("language").onclick = switchLanguage;
$("theme").onclick = switchTheme;
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault();
  $("main").focus();
};
addEventListener("hashchange", show);

learn(WORDS);
let language = "";
Object.assign(session, await api("session").catch((error) => ({ failed: error.message })));
onLook(() => {
  $("language").textContent = word("name");
  $("workspace").replaceChildren(
    session.workspace ?? "",
    session.read_only ? h("span", { class: "tag" }, word("readOnly")) : "",
  );
  $("workspace").title = session.folder ?? "";
  if (language !== look.language) {
    language = look.language;
    show();
  }
});
