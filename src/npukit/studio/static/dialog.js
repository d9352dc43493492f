// Questions in a dialog.
import { button, h, word } from "./dom.js";

// The value with which `body` or `buttons` end the dialog; null if it was closed.
export function dialog(title, body, buttons) {
  const box = document.getElementById("dialog");
  return new Promise((resolve) => {
    const end = (value) => {
      box.close();
      resolve(value);
    };
    box.oncancel = () => resolve(null);
    box.setAttribute("aria-label", title);
    box.replaceChildren(h("h2", {}, title), body(end), h("div", { class: "row end" }, buttons(end)));
    box.showModal();
  });
}

// Whether somebody means it.
export const confirm = (title, text, action, more) =>
  dialog(
    title,
    () => h("div", {}, h("p", {}, text), more),
    (end) => [button(word("cancel"), () => end(false)), button(action, () => end(true), "danger")],
  );
