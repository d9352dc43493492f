// Zoom of a chart: drag over steps, or use the keyboard; a double click, 0 or Escape shows everything again.
const MIN_PIXELS = 8; // of a drag; less is a click
const KEYS = {
  "+": (first, last, width) => [first + width / 4, last - width / 4],
  "=": (first, last, width) => [first + width / 4, last - width / 4],
  "-": (first, last, width) => [first - width / 2, last + width / 2],
  ArrowLeft: (first, last, width) => [first - width / 4, last - width / 4],
  ArrowRight: (first, last, width) => [first + width / 4, last + width / 4],
};

// A range inside of another, in whole steps; null where it is all of it.
function clamped([first, last], [lowest, highest]) {
  const width = Math.min(last - first, highest - lowest);
  const from = Math.max(lowest, Math.min(first, highest - width));
  const range = [Math.floor(from), Math.ceil(from + Math.max(width, 2))];
  return range[0] <= lowest && range[1] >= highest ? null : range;
}

// The listeners of a chart; see Chart in chart.js.
export function zoomListeners(chart) {
  let start = null; // the pixel at which a drag began
  const zoom = (range) => chart.given.zoom?.(range && clamped(range, chart.frame.all));
  return {
    onpointerdown(event) {
      if (event.button !== 0 || !chart.given.zoom) return;
      start = event.offsetX;
      event.currentTarget.setPointerCapture(event.pointerId);
    },
    onpointermove(event) {
      if (start !== null) chart.mark(start, event.offsetX);
    },
    onpointerup(event) {
      if (start === null) return;
      const pixels = [start, event.offsetX].sort((one, other) => one - other);
      start = null;
      chart.mark(0, 0);
      const { first, last, stepAt } = chart.frame;
      if (pixels[1] - pixels[0] < MIN_PIXELS) return;
      zoom([Math.max(first, stepAt(pixels[0])), Math.min(last, stepAt(pixels[1]))]);
    },
    onpointercancel() {
      start = null;
      chart.mark(0, 0);
    },
    ondblclick() {
      zoom(null);
    },
    onkeydown(event) {
      const change = KEYS[event.key];
      if (!change && event.key !== "0" && event.key !== "Escape") return;
      event.preventDefault();
      const { first, last } = chart.frame;
      zoom(change ? change(first, last, last - first) : null);
    },
  };
}
