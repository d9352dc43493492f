// Pages: their addresses, and what ends when one is left.
import { h, say, word } from "./dom.js";

let ends = [];

export const address = (page, values = {}) => {
  const rest = new URLSearchParams(values).toString();
  return `#/${page}${rest ? `?${rest}` : ""}`;
};

export const link = (text, page, values, kind = "button") => h("a", { class: kind, href: address(page, values) }, text);

// The way back from a run.
export const toRuns = () => h("p", { class: "crumbs" }, link(word("runs"), "runs", {}, ""));

export const go = (page, values) => {
  location.hash = address(page, values);
};

export const onLeave = (act) => ends.push(act);

export function leave() {
  for (const act of ends) act();
  ends = [];
}

// Call `act` now and again until the page is left, and when the returned function is called. A hidden page rests.
export function every(milliseconds, act) {
  let isOver = false;
  let timer = 0;
  let problem = "";
  const attempt = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      const before = problem;
      problem = await act().then(
        () => "",
        (error) => error.message,
      );
      if (problem !== before && !isOver) say(problem, true);
    }
    clearTimeout(timer);
    if (!isOver) timer = setTimeout(attempt, milliseconds);
  };
  onLeave(() => {
    isOver = true;
    clearTimeout(timer);
  });
  attempt();
  return attempt;
}
