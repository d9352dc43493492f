// Where a run happens: the kind of device, how many, and which card is simulated.
import { field, h, select, word } from "./ui.js";

export function deviceChoices(choices, state, changed) {
  if (!choices.devices.includes(state.device)) state.device = choices.devices[0];
  const device = select(choices.devices.map((value) => ({ value, text: word(`device_${value}`) })), state.device);
  const count = h("input", { type: "number", min: "1", max: "1024", value: state.devices });
  const card = select(choices.cards, state.card);
  const cardField = field(word("card"), card);
  const show = () => { cardField.hidden = state.device !== "sim"; };
  device.onchange = () => { state.device = device.value; show(); changed(); };
  count.oninput = () => { state.devices = Math.max(1, Number(count.value) || 1); changed(); };
  card.onchange = () => { state.card = card.value; changed(); };
  show();
  return h("div", { class: "fields" }, field(word("device"), device), field(word("count"), count), cardField);
}
