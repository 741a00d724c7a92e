import { read, store, write } from "./store.js";

const KEY = "dasl-theme";
/** Colors of series that people with any color vision can tell apart, for both themes. */
export const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
// What is drawn on a canvas needs colors as numbers: registered, a token of both themes is computed for the one shown.
for (const name of [...COLORS, "--muted", "--muted-line", "--grid", "--text"])
  CSS.registerProperty({ name, syntax: "<color>", inherits: true, initialValue: "black" });

const system = matchMedia("(prefers-color-scheme: dark)");

/** The red, green and blue of a token of the stylesheet, from 0 to 255. @param {string} token */
export function rgbOf(token) {
  const color = getComputedStyle(document.documentElement).getPropertyValue(token);
  return (color.match(/\d+/g) ?? []).map(Number);
}

/** The theme that is shown. */
export const theme = store(chosen());

function chosen() {
  const saved = read(KEY);
  return saved === "light" || saved === "dark" ? saved : system.matches ? "dark" : "light";
}

function apply() {
  document.documentElement.dataset.theme = theme.get();
}

/** Change between light and dark; what equals the system's is not saved, so that it follows the system. */
export function toggleTheme() {
  const next = theme.get() === "dark" ? "light" : "dark";
  write(KEY, next === (system.matches ? "dark" : "light") ? null : next);
  theme.set(next);
}

system.addEventListener("change", () => theme.set(chosen()));
theme.follow(apply);
apply();
