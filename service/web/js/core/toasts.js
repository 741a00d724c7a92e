import { Problem } from "./api.js";
import { store } from "./store.js";

/** @typedef {{id: number, text: string, details: string[], bad: boolean}} Toast */
export const toasts = store(/** @type {Toast[]} */ ([]));
let count = 0;

/** Show a message for some seconds. @param {string} text */
export function say(text) {
  add({ text, details: [], bad: false }, 5000);
}

/** Show an error, with the fields that a problem document names. @param {Error} error */
export function complain(error) {
  if (error instanceof Problem && error.type === "offline") return; // The banner says so.
  const details = error instanceof Problem ? error.errors.map(fieldText) : [];
  const text =
    error instanceof Problem && details.length
      ? (error.document.title ?? "Refused")
      : error.message;
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

/** A field's problem as a sentence. @param {Api.FieldError} error */
export function fieldText(error) {
  const expected = error.expected ? ` Expected: ${ended(error.expected)}` : "";
  return `${error.field}: ${ended(error.message)}${expected}`;
}

/** Run an action; show its error, or the message of success. Return whether it succeeded. @param {() => unknown} action */
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

/** @param {Omit<Toast, "id">} toast @param {number} time in milliseconds */
function add(toast, time) {
  const id = ++count;
  toasts.set([...toasts.get().slice(-3), { id, ...toast }]);
  setTimeout(() => dismiss(id), time);
}
