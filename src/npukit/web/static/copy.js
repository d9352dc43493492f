// Copying to the clipboard.
import { word } from "./look.js";
import { element, icon } from "./markdown.js";

// Copy the text; the button says whether that worked.
export async function copy(text, button) {
  const worked = await write(text, button);
  label(button, worked ? "done" : "close", worked ? "copied" : "notCopied");
  setTimeout(() => label(button, "copy", "copy"), worked ? 1200 : 4000);
}

function label(button, picture, name) {
  button.replaceChildren(icon(picture));
  button.title = button.ariaLabel = word(name);
}

async function write(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return writeFromField(text, button);
  }
}

// Browsers have no navigator.clipboard on a page from another machine without HTTPS.
function writeFromField(text, button) {
  const field = element("textarea", { "aria-hidden": "true" });
  field.value = text;
  Object.assign(field.style, { position: "fixed", opacity: 0 });
  button.after(field); // not in the body, which is out of reach behind a dialog
  field.select();
  const worked = document.execCommand("copy");
  field.remove();
  button.focus();
  return worked;
}
