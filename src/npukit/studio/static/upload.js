// Upload of a configuration: of npukit, LLaMA-Factory or ms-swift.
import { bullets, h, problem, problems, word } from "./dom.js";
import { api } from "./server.js";

const MAX_BYTES = 2 ** 20;

// {parts, note}: the button, and what is said about the last file; set(values) gets the options that it sets.
export function uploadButton(set) {
  const input = h("input", { type: "file", accept: ".yaml,.yml,.json,.txt", class: "unseen", id: "upload" });
  const note = h("div");
  const read = async (file) => {
    if (file.size > MAX_BYTES) return problem(word("uploadTooLarge"));
    const { values, notes, dialect, mistakes } = await api("train/translate", { text: await file.text() });
    if (mistakes.length) return problems(mistakes);
    set(values);
    const summary = word("readAs", { file: file.name, tool: dialect, count: Object.keys(values).length });
    return h("div", { class: "note" }, h("p", {}, summary), bullets(notes, ""));
  };
  input.onchange = async () => {
    const [file] = input.files;
    input.value = "";
    if (file) note.replaceChildren(await read(file).catch((error) => problem(error.message)));
  };
  return { parts: [h("label", { class: "button", for: "upload" }, word("uploadConfig")), input], note };
}
