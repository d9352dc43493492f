// Language and theme: chosen on any page of npukit, kept in this browser, and the same on all of them.
import { COMMON } from "./common.js";

const KEY = "npukit-look";
const catalogue = { en: { ...COMMON.en }, zh: { ...COMMON.zh } };
const listeners = [];
export const look = {};

function read() {
  const saved = JSON.parse(localStorage.getItem(KEY) ?? "{}");
  look.language = saved.language ?? (navigator.language.startsWith("zh") ? "zh" : "en");
  look.theme = saved.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

// Add a page's own words: {en: {name: text}, zh: {name: text}}.
export function learn(words) {
  for (const language of Object.keys(catalogue)) Object.assign(catalogue[language], words[language]);
}

export const knows = (name) => name in catalogue[look.language];

// The text of a name; {count} in it is filled from `values`.
export function word(name, values = {}) {
  const text = catalogue[look.language][name] ?? name;
  return typeof text === "string" ? text.replace(/\{(\w+)\}/g, (all, key) => values[key] ?? all) : text;
}

// Put words where the page names them, and the theme on the page.
export function dress() {
  const root = document.documentElement;
  root.lang = look.language === "zh" ? "zh-CN" : "en";
  root.dataset.theme = look.theme;
  for (const each of document.querySelectorAll("[data-text]")) each.textContent = word(each.dataset.text);
  for (const each of document.querySelectorAll("[data-title]")) {
    each.title = word(each.dataset.title);
    each.setAttribute("aria-label", each.title);
  }
  for (const each of document.querySelectorAll("[data-placeholder]")) each.placeholder = word(each.dataset.placeholder);
}

// `listener` draws what is not named in the page; it is called now, and when language or theme change.
export function onLook(listener) {
  listeners.push(listener);
  dress();
  listener();
}

function changed() {
  dress();
  for (const each of listeners) each();
}

function choose(changes) {
  Object.assign(look, changes);
  localStorage.setItem(KEY, JSON.stringify(look));
  changed();
}

export const switchLanguage = () => choose({ language: look.language === "en" ? "zh" : "en" });
export const switchTheme = () => choose({ theme: look.theme === "dark" ? "light" : "dark" });

read();
addEventListener("storage", (event) => { if (event.key === KEY) { read(); changed(); } });
