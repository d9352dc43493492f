// Numbers of a chart: ticks and their texts, means, the nearest point.

// Round numbers between two.
export function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= raw) * power;
  const made = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step)
    made.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return made;
}

// 1, 2, 5, 10 … between two; only powers of ten where they are far apart.
export function powers(low, high) {
  const digits = high / low > 1000 ? [1] : [1, 2, 5];
  const made = [];
  for (let exponent = Math.floor(Math.log10(low)); exponent <= Math.log10(high); exponent++) {
    made.push(...digits.map((digit) => digit * 10 ** exponent).filter((each) => each >= low && each <= high));
  }
  return made.length > 1 ? made : [low, high];
}

// Short texts that tell values apart and, where a few digits suffice, are exact; format(value, digits, largest).
export function texts(values, format) {
  const largest = most(values.map(Math.abs));
  const tried = [0, 1, 2, 3, 4, 5, 6].map((digits) => values.map((value) => format(value, digits, largest)));
  const distinct = tried.findIndex((made) => new Set(made).size === values.length);
  const isExact = (made, at) => made.every((text, number) => parseFloat(text) === parseFloat(tried[at + 1]?.[number]));
  const exact = tried.findIndex((made, at) => at >= distinct && at <= distinct + 2 && isExact(made, at));
  return tried[Math.max(0, exact >= 0 ? exact : distinct)];
}

// An exponential mean that begins without a bias.
export function smoothed(values, weight) {
  let mean = 0;
  let total = 0;
  return values.map((value) => {
    mean = mean * weight + value * (1 - weight);
    total = total * weight + 1 - weight;
    return mean / total;
  });
}

// The index of the step that is nearest; steps ascend.
export function nearest(steps, wanted) {
  let low = 0;
  let high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle;
    else high = middle;
  }
  return wanted - steps[low] < steps[high] - wanted ? low : high;
}

// Math.min(...values) has a limit; curves do not.
export const least = (values) => values.reduce((one, other) => (other < one ? other : one), Infinity);
export const most = (values) => values.reduce((one, other) => (other > one ? other : one), -Infinity);
