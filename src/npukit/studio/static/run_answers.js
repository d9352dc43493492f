// The answers of a run of reinforcement learning, with their rewards: the last steps, the best answers first.
import { LIVE, card, h, table, tabs, word } from "./dom.js";
import { figure, whole } from "./format.js";
import { every } from "./pages.js";
import { query } from "./server.js";

export function runAnswers(box, id, stateNow) {
  const [choices, rows] = [h("div"), h("div")];
  let chosen = null; // the last step
  let drawn = "";
  const choose = (step) => {
    chosen = step;
    drawn = "";
    refresh();
  };
  box.replaceChildren(card(word("answers"), choices, rows));
  const refresh = every(5000, async () => {
    const state = stateNow();
    if (!LIVE.includes(state) && drawn === state) return;
    drawn = state;
    const { steps, answers } = await query("run/answers", { id });
    const step = chosen ?? steps.at(-1);
    const texts = steps.map((value) => ({ value, text: `${word("step")} ${whole(value)}` }));
    choices.replaceChildren(tabs(word("step"), texts, step, choose));
    rows.replaceChildren(answerTable(answers.filter((answer) => answer.step === step)));
  });
}

function answerTable(answers) {
  const names = [...new Set(answers.flatMap((answer) => Object.keys(answer.rewards)))];
  const turns = (answer) =>
    answer.messages.map(({ role, content }) => h("p", {}, h("b", {}, role), " ", h("span", {}, content)));
  const columns = [
    { title: word("answer"), class: "answer", cell: turns },
    { title: word("reward"), number: true, cell: (answer) => figure(answer.reward) },
    ...names.map((name) => ({ title: name, number: true, cell: (answer) => figure(answer.rewards[name]) })),
    { title: word("advantage"), number: true, cell: (answer) => figure(answer.advantage) },
    { title: word("tokens"), number: true, cell: (answer) => whole(answer.tokens) },
  ];
  return table(
    columns,
    answers.sort((first, second) => second.advantage - first.advantage),
  );
}
