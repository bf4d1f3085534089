// This script shows the `title` of elements to users without a mouse. A box with the text appears next to an element
// that a user taps or reaches by keyboard. The marks of a completion are one Tab stop; the arrow keys
// move between the marks.

const MARKS = ".body [title]";
const box = document.createElement("div");
box.id = "tip";
box.setAttribute("role", "tooltip");
box.hidden = true;
document.body.append(box);
let shown = null;

function show(element) {
  hide();
  shown = element;
  shown.setAttribute("aria-describedby", box.id);
  box.textContent = element.title;
  box.hidden = false;
  place();
}

// Moves the box to its element, which may have scrolled, and hides the box if the element is no longer
// visible.
function place() {
  if (!shown) return;
  const at = shown.getClientRects()[0] ?? shown.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = box;
  if (!shown.isConnected || at.bottom < 0 || at.top > innerHeight) return hide();
  const below = at.bottom + 6 + height <= innerHeight;
  box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  box.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - height - 6)}px`;
}

function hide() {
  shown?.removeAttribute("aria-describedby");
  shown = null;
  box.hidden = true;
}

// Moves the focus to another mark of the completion. The Tab stop moves along.
function go(mark, step) {
  const marks = [...mark.closest(".body").querySelectorAll(MARKS)];
  const next = marks[marks.indexOf(mark) + step];
  if (!next) return;
  mark.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

// Makes the first mark of a completion the Tab stop. Call this when the completion has been drawn.
export function reachByKeyboard(body) {
  for (const [i, mark] of [...body.querySelectorAll(MARKS)].entries()) mark.tabIndex = i === 0 ? 0 : -1;
}

document.addEventListener("click", (event) => {
  const element = event.target.closest?.("[title]");
  if (element && element !== shown && (!element.matches("button") || event.pointerType === "touch")) show(element);
  else hide();
});
document.addEventListener("focusin", (event) => {
  if (event.target.matches("[title]:focus-visible")) show(event.target);
  else if (shown && event.target !== shown) hide();
});
document.addEventListener("focusout", hide);
document.addEventListener("scroll", place, true);
addEventListener("resize", place);
// The listener captures events before other handlers, because Escape first closes a box that covers the page.
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && shown) {
    hide();
    return event.stopImmediatePropagation();
  }
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey || !event.target.matches?.(MARKS)) return undefined;
  event.preventDefault();
  return go(event.target, step);
}, true);
