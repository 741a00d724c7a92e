import { ended } from "../core/toasts.js";
import { html } from "../vendor.js";

/** What the server says about a field, at the field. @param {{error: Refusal | null, field: string}} props */
export function FieldProblem({ error, field }) {
  const errors = (error?.errors ?? []).filter((each) => each.field === field);
  return html`${errors.map((each) => html`<span class="field-problem" role="alert">${sentence(each)}</span>`)}`;
}

/**
 * The part of an error that stands at none of these fields; null if there is none.
 * @param {Refusal | null} error
 * @param {string[]} fields
 */
export function otherProblems(error, fields) {
  if (!error) return null;
  const errors = (error.errors ?? []).filter((each) => !fields.includes(each.field));
  if (error.errors?.length && errors.length === 0) return null;
  return { message: error.message, document: error.document, errors };
}

/** @param {Api.FieldError} error */
function sentence({ message, given, expected }) {
  const text = `${message.charAt(0).toUpperCase()}${message.slice(1)}`;
  return `${ended(`${text}${given && given !== "''" ? ` (given: ${given})` : ""}`)}${expected ? ` Expected: ${ended(expected)}` : ""}`;
}
