import { useEffect, useRef } from "../vendor.js";
import { go } from "./router.js";
import { store } from "./store.js";

/** Whether the list of shortcuts is shown. */
export const helpShown = store(false);

/** @type {string[]} */
let views = [];
/** @type {{current: Record<string, (event: KeyboardEvent) => void>}[]} */
const layers = [];
let pendingView = -Infinity;

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  const view =
    performance.now() - pendingView < 1500 && views.find((path) => path.startsWith(event.key));
  pendingView = -Infinity;
  if (view) {
    event.preventDefault();
    go([view]);
    return;
  }
  if (event.key === "g") pendingView = performance.now();
  else if (event.key === "?") helpShown.set(true);
  else if (event.key === "/") focusSearch(event);
  else layers.findLast((keys) => keys.current[event.key])?.current[event.key](event);
});

/** The views that `g` and their first letter open: of several with the same letter, the first. @param {string[]} paths */
export function setViews(paths) {
  views = paths;
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}

/** @param {Event} event */
function focusSearch(event) {
  const field = document.querySelector("input[type=search]");
  if (!(field instanceof HTMLInputElement)) return;
  event.preventDefault();
  field.focus();
  field.select();
}

/** Shortcuts of a view, while it is shown. @param {Record<string, (event: KeyboardEvent) => void>} keys */
export function useKeys(keys) {
  const newest = useRef(keys);
  newest.current = keys;
  useEffect(() => {
    layers.push(newest);
    return () => void layers.splice(layers.indexOf(newest), 1);
  }, []);
}
