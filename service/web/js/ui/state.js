import { get, useResource } from "../core/api.js";
import { ended, fieldText } from "../core/toasts.js";
import { Button } from "./controls.js";
import { html, useState } from "../vendor.js";

/** What stands in place of content: while it loads, if it failed, or if there is none. */
export function Loading({ what = "" }) {
  return html`<div class="placeholder" role="status"><span class="spinner"></span> ${what ? `Loading ${what}` : "Loading"} …</div>`;
}

/** Nothing to show, and what to do about it. @param {{title: string, children?: Content}} props */
export function Empty({ title, children }) {
  return html`<div class="placeholder empty"><h2>${title}</h2>${children}</div>`;
}

/**
 * Loading, failure or the content of a resource.
 * @template T
 * @param {{resource: Resource<T>, what?: string, children: (data: T) => Content}} props
 */
export function Loaded({ resource, what, children }) {
  const { data, error, reload } = resource;
  const failure = error && html`<${Failure} error=${error} onRetry=${reload} />`;
  // What was deleted meanwhile has no state any more. While the service is away (0), the banner says so.
  if (data !== undefined && error?.status !== 404)
    return html`${error?.status ? failure : null}${children(data)}`;
  return failure ?? html`<${Loading} what=${what} />`;
}

/**
 * A component whose module is loaded when it is first shown.
 * @template {object} Props
 * @param {() => Promise<import("preact").ComponentType<Props>>} load
 */
export function later(load) {
  /** @type {{component: import("preact").ComponentType<Props>} | undefined} */
  let loaded;
  return function Later(/** @type {Props} */ props) {
    const resource = useResource(async () => {
      try {
        loaded ??= { component: await load() };
      } catch (error) {
        // The browser only says that a file was not loaded. If the service is away, this says so, and it is tried again.
        await get("/livez");
        throw error;
      }
      return loaded;
    }, []);
    return html`<${Loaded} resource=${resource}>${({ component: Component }) => html`<${Component} ...${props} />`}<//>`;
  };
}

/** The error that the last request of a form ended with, and a function that runs such requests. */
export function useRefusal() {
  const [refusal, setRefusal] = useState(/** @type {Refusal | null} */ (null));
  const attempt = async (/** @type {() => unknown} */ action) => {
    setRefusal(null);
    try {
      await action();
    } catch (error) {
      setRefusal(error);
    }
  };
  return { refusal, attempt, forget: () => setRefusal(null) };
}

/** An error with the fields that it names. @param {{error: Refusal, onRetry?: () => void}} props */
export function Failure({ error, onRetry }) {
  const errors = error.errors ?? [];
  return html`<div class="notice red" role="alert">
    <strong>${error.document?.title ?? "Not loaded"}</strong>
    ${
      errors.length
        ? html`<ul>${errors.map((each) => html`<li>${fieldText(each)}</li>`)}</ul>`
        : html`<p>${error.message}</p>`
    }
    ${onRetry && html`<${Button} icon="refresh" label="Try again" onClick=${onRetry} />`}
  </div>`;
}

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
