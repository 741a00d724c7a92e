import { read, store, write } from "./store.js";

const KEY = "dasl-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

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
