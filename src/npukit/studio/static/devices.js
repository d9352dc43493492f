// Where a run happens: the kind of device, how many, and the card that is simulated and estimated.
import { h, word } from "./dom.js";
import { field, select } from "./fields.js";

// {box, show()}; changed() is called when somebody chooses.
export function deviceChoices(choices, state, changed) {
  if (!choices.devices.includes(state.device)) state.device = choices.devices[0];
  const set = (name) => (value) => {
    state[name] = value;
    changed();
  };
  const device = select(
    choices.devices.map((value) => ({ value, text: word(`device_${value}`) })),
    state.device,
    set("device"),
  );
  const card = select(choices.cards, state.card, set("card"));
  const count = h("input", { type: "number", min: "1", max: "1024", value: state.devices });
  count.oninput = () => set("devices")(Math.max(1, Number(count.value) || 1));
  const box = h(
    "div",
    { class: "fields" },
    field(word("device"), device),
    field(word("count"), count),
    field(word("card"), card, word("cardHint")),
  );
  return {
    box,
    show: () => {
      count.value = state.devices;
    },
  };
}
