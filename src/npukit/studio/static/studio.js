// The studio: which page is shown, and in which language.
import { learn, look, onLook, switchLanguage, switchTheme } from "./look.js";
import { api, h, icon, leave, problem, session, word } from "./ui.js";
import { WORDS } from "./words.js";
import * as chat from "./chat.js";
import * as data from "./data.js";
import * as machine from "./machine.js";
import * as port from "./port.js";
import * as run from "./run.js";
import * as runs from "./runs.js";
import * as train from "./train.js";
import * as verb from "./verb.js";

const PAGES = { machine, port, data, train, runs, run, chat, eval: verb, export: verb, precision: verb, performance: verb };
const GROUPS = [["machine"], ["port"], ["data", "train", "runs"], ["chat", "eval", "export"], ["precision", "performance"]];
const $ = (id) => document.getElementById(id);
let shown = 0;

function where() {
  const [name, values] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: name in PAGES ? name : "machine", values: Object.fromEntries(new URLSearchParams(values ?? "")) };
}

function drawNav(current) {
  const link = (name) => h("a", { href: `#/${name}`, "aria-current": (name === current || (name === "runs" && current === "run")) && "page" }, icon(name), word(name));
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
    await PAGES[name].show(main, values, name);
  } catch (error) {
    if (mine === shown) main.append(problem(error.message));
  }
}

const openMenu = (open) => { $("nav").classList.toggle("open", open); $("menu").setAttribute("aria-expanded", open); };
$("menu").onclick = () => openMenu(!$("nav").classList.contains("open"));
$("language").onclick = switchLanguage;
$("theme").onclick = switchTheme;
document.querySelector(".skip").onclick = (event) => { event.preventDefault(); $("main").focus(); };
addEventListener("hashchange", show);

learn(WORDS);
let language = "";
Object.assign(session, await api("session").catch((error) => ({ failed: error.message })));
onLook(() => {
  $("language").textContent = word("name");
  $("workspace").replaceChildren(session.workspace ?? "", session.read_only ? h("span", { class: "tag" }, word("readOnly")) : "");
  $("workspace").title = session.folder ?? "";
  if (language !== look.language) { language = look.language; show(); }
});
