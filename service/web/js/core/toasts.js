import { Problem } from "./api.js";
import { store } from "./store.js";

/** @type {ReturnType<typeof store<{id: number, text: string, details: string[], bad: boolean}[]>>} */
export const toasts = store([]);
let count = 0;

/** Show a message for some seconds. @param {string} text */
export function say(text) {
  add({ text, details: [], bad: false }, 5000);
}

/** Show an error, with the fields that a problem document names. @param {unknown} error */
export function complain(error) {
  if (error instanceof Problem && error.type === "offline") return; // The banner says so.
  const details = error instanceof Problem ? error.errors.map(fieldText) : [];
  const text = details.length ? titleOf(error) : String(error?.message ?? error);
  add({ text, details, bad: true }, 15000);
}

/** @param {number} id */
export function dismiss(id) {
  toasts.set(toasts.get().filter((toast) => toast.id !== id));
}

/** A sentence with its end. @param {string} text */
export function ended(text) {
  return /[.?!]$/.test(text) ? text : `${text}.`;
}

/** A field's problem as a sentence. */
export function fieldText(error) {
  const expected = error.expected ? ` Expected: ${ended(error.expected)}` : "";
  return `${error.field}: ${ended(error.message)}${expected}`;
}

/** Run an action; show its error, or the message of success. Return whether it succeeded. */
export async function attempt(action, done = "") {
  try {
    await action();
  } catch (error) {
    complain(error);
    return false;
  }
  if (done) say(done);
  return true;
}

function titleOf(problem) {
  return problem.document.title ?? "Refused";
}

function add(toast, time) {
  const id = ++count;
  toasts.set([...toasts.get().slice(-3), { id, ...toast }]);
  setTimeout(() => dismiss(id), time);
}
