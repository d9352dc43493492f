// What the pages of reports share: elements, and lists that are drawn piece by piece.
function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}
function offer(select, values) {
  for (const [value, text] of values) { const option = make("option", text); option.value = value; select.append(option); }
}
// Draws `size` more of `items` at a time, with a button for the rest.
function inPieces(items, size, draw, into, after) {
  let from = 0;
  const more = make("button");
  const next = () => {
    for (const item of items.slice(from, from + size)) into.append(draw(item));
    from += size;
    more.textContent = `show ${Math.min(size, items.length - from)} more of ${items.length - from}`;
    if (from >= items.length) more.remove(); else after.append(more);
  };
  more.type = "button";
  more.onclick = next;
  next();
}
