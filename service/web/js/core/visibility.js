import { store } from "./store.js";

/** Whether the page can be seen: its tab is in front. */
export const visible = store(!document.hidden);

document.addEventListener("visibilitychange", () => visible.set(!document.hidden));
