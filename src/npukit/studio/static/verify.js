// Port, third step: run the project before and after its migration, and compare the losses.
import { LIVE, button, card, command, h, row, word, working } from "./dom.js";
import { field, pathInput, select, textInput } from "./fields.js";
import { every, link } from "./pages.js";
import { verification } from "./result.js";
import { api, query, session } from "./server.js";

export async function verify({ path, output, command: kept }) {
  const [choices, runs] = await Promise.all([api("machine/choices"), api("runs")]);
  const line = textInput(kept.get());
  const after = pathInput(output.get(), { folders: true });
  const device = select(
    choices.devices.map((value) => ({ value, text: word(`device_${value}`) })),
    "sim",
  );
  const devices = h("input", { type: "number", min: "1", max: "64", value: "1" });
  const result = h("div");
  const start = async () => {
    kept.set(line.value);
    const given = {
      path,
      output: after.input.value,
      command: line.value,
      device: device.value,
      devices: Number(devices.value),
    };
    watch(result, (await api("port/verify", given)).id);
  };
  const latest = runs.find((each) => each.kind === "verify" && each.project === path);
  if (latest) watch(result, latest.id);
  return [
    card(
      "",
      h(
        "div",
        { class: "fields" },
        field(word("migratedFolder"), after.input, "", { around: after.around }),
        field(word("trainCommand"), line, word("trainCommandHint")),
        field(word("device"), device),
        field(word("count"), devices),
      ),
      !session.read_only && row(button(word("startVerify"), start, "primary")),
    ),
    result,
  ];
}

// Show how a verification goes, and what it found.
function watch(box, id) {
  let shown = "";
  const draw = async ({ state, command: line }) => {
    const more = card("", command(line), row(link(word("seeRun"), "run", { id })));
    if (LIVE.includes(state))
      return [card("", working(word("verifying")), command(line), row(link(word("seeRun"), "run", { id })))];
    const { data } = await query("run/result", { id });
    if (data) return [...verification(data), more];
    const { text } = await query("run/log", { id, name: "output" });
    return [card(word("runFailed"), h("pre", { class: "log" }, text)), more];
  };
  every(1500, async () => {
    const run = await query("run", { id });
    if (run.state === shown) return;
    shown = run.state;
    box.replaceChildren(...(await draw(run)));
  });
}
