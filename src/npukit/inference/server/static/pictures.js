// Pictures for the next question: chosen, dropped or pasted, made small enough to be sent, and shown before that.
import { element, icon } from "./markdown.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const LONGEST = 1280; // pixels of a side
const SMALL = 300_000; // bytes of a file that is sent as it is

const asAddress = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(blob);
});

// A data URI of the picture, scaled down where it is large.
async function read(file) {
  const bitmap = await createImageBitmap(file);
  const scale = LONGEST / Math.max(bitmap.width, bitmap.height);
  if (file.size <= SMALL && scale >= 1) return asAddress(file);
  const canvas = element("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * Math.min(1, scale)));
  canvas.height = Math.max(1, Math.round(bitmap.height * Math.min(1, scale)));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

// Keeps the pictures of the composer. `options` has its elements, the words for a button, and what to do on a change.
export function makePictures({ button, input, shown, composer, remove, failed, changed }) {
  let pictures = [];
  let allowed = false;

  function draw() {
    shown.hidden = !pictures.length;
    shown.replaceChildren(...pictures.map((address, index) => {
      const drop = element("button", { type: "button", class: "quiet", title: remove(), "aria-label": remove() }, icon("close"));
      drop.onclick = () => { pictures.splice(index, 1); draw(); };
      return element("figure", {}, element("img", { src: address, alt: "" }), drop);
    }));
    changed();
  }

  async function add(files) {
    for (const file of files) {
      if (!KINDS.includes(file.type)) continue;
      try { pictures.push(await read(file)); } catch { failed(file.name); }
    }
    draw();
  }

  button.onclick = () => input.click();
  input.onchange = () => { add([...input.files]); input.value = ""; };
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (allowed && files.length) { event.preventDefault(); add(files); }
  });
  addEventListener("dragover", (event) => {
    if (!allowed) return;
    event.preventDefault();
    composer.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) composer.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    composer.classList.remove("dropping");
    if (!allowed) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });

  return {
    allow(is_allowed) { allowed = is_allowed; button.hidden = !is_allowed; },
    get any() { return pictures.length > 0; },
    put(addresses) { pictures = [...addresses]; draw(); },
    take() { const taken = pictures; pictures = []; draw(); return taken; },
  };
}

// What a message with pictures is in OpenAI's API.
export function asContent(text, pictures) {
  if (!pictures?.length) return text;
  return [...pictures.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
}
