// The estimate of `npukit plan`, and the change of `npukit plan --fit` that makes a training fit.
import { button, empty, h, pairs, row, word } from "./dom.js";
import { bytes, duration, plain, whole } from "./format.js";
import { api } from "./server.js";

// The parts of an estimate; replace(values, devices) fills the form anew.
export function estimate(plan, state, isUntouched, replace) {
  if (!plan)
    return [isUntouched ? empty(word("noPlan"), word("noPlanHint")) : h("p", { class: "soft" }, word("planWaits"))];
  const total = plan.memory?.total;
  const room = plan.usable ? word("ofTotal", { value: bytes(total), total: bytes(plan.usable) }) : bytes(total);
  const rows = `${plan.rows_are_exact ? "" : "≈ "}${whole(plan.rows)}`;
  const times = plan.days && [...new Set(plan.days.map((days) => duration(days * 86400)))].join(" – ");
  return [
    plan.fits !== null &&
      h(
        "p",
        {},
        h(
          "span",
          { class: `badge ${plan.fits ? "finished" : "failed"}` },
          word(plan.fits ? "fits" : "doesNotFit", { card: plan.card }),
        ),
      ),
    pairs(
      total && [word("memoryPerCard"), room],
      plan.parameters && [word("parameters"), whole(plan.parameters)],
      plan.trained && [word("trained"), whole(plan.trained)],
      plan.rows && [word("rows"), rows],
      plan.steps && [word("steps"), whole(plan.steps)],
      [word("tokensPerStep"), whole(plan.tokens_per_step)],
      times && [word("timeOn", { card: `${plan.devices} × ${plan.card}` }), times],
    ),
    plan.fits === false && makeFit(state, replace),
  ].filter(Boolean);
}

function makeFit(state, replace) {
  const box = h("div", { class: "plan" });
  const find = button(word("makeFit"), async () => {
    const { kind, changes, devices, memory, usable } = await api("train/fit", state);
    const lines = Object.entries(changes).map(([key, value]) => [h("code", {}, key), plain(value)]);
    box.replaceChildren(
      h("p", {}, word(`fit_${kind.replaceAll(" ", "_")}`)),
      pairs(...lines, devices !== state.devices && [word("count"), whole(devices)], [
        word("memoryPerCard"),
        word("ofTotal", { value: bytes(memory), total: bytes(usable) }),
      ]),
      row(button(word("takeFit"), () => replace({ ...state.values, ...changes }, devices), "primary")),
    );
  });
  box.append(find);
  return box;
}
