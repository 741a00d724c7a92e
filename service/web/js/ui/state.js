import { fieldText } from "../core/toasts.js";
import { html } from "../vendor.js";
import { Button } from "./button.js";

/** What stands in place of content: while it loads, if it failed, or if there is none. */
export function Loading({ what = "" }) {
  return html`<div class="placeholder" role="status"><span class="spinner"></span> ${what ? `Loading ${what}` : "Loading"} …</div>`;
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
  if (resource.data !== undefined) return html`${children(resource.data)}`;
  if (resource.error)
    return html`<${Failure} error=${resource.error} onRetry=${resource.reload} />`;
  return html`<${Loading} what=${what} />`;
}
