// The logs of a run: that of its launcher and those of its ranks.
import { LIVE, card, h, tabs, word } from "./dom.js";
import { every } from "./pages.js";
import { query } from "./server.js";

const NEAR_THE_END = 40; // pixels: whoever has scrolled up more is not carried along

export function runLogs(box, id, stateNow) {
  const pre = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": word("log") });
  const choices = h("div");
  let name = "output";
  let follows = true;
  let drawn = "";
  const text = (each) =>
    each === "output" ? word("launcher") : each.replace(/rank(\d+)$/, (_, number) => `${word("rank")} ${number}`);
  const choose = (chosen) => {
    name = chosen;
    follows = true;
    drawn = "";
    refresh();
  };
  pre.onscroll = () => {
    follows = pre.scrollHeight - pre.scrollTop - pre.clientHeight < NEAR_THE_END;
  };
  box.replaceChildren(card(word("log"), choices, pre));
  const refresh = every(2500, async () => {
    const state = stateNow();
    if (!LIVE.includes(state) && drawn === state) return;
    drawn = state;
    const found = await query("run/log", { id, name });
    if (choices.names !== `${found.logs} ${name}`) {
      choices.names = `${found.logs} ${name}`;
      choices.replaceChildren(
        tabs(
          word("log"),
          found.logs.map((value) => ({ value, text: text(value) })),
          name,
          choose,
        ),
      );
    }
    pre.textContent = found.text || word("emptyLog");
    if (follows) pre.scrollTop = pre.scrollHeight;
  });
}
