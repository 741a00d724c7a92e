import { useStore } from "../core/store.js";
import { dismiss, toasts } from "../core/toasts.js";
import { html } from "../vendor.js";
import { Button } from "./button.js";

/** Messages at the edge of the page. */
export function ToastList() {
  const shown = useStore(toasts);
  return html`<div class="toasts" aria-live="polite">
    ${shown.map(
      (
        toast,
      ) => html`<div key=${toast.id} class=${`toast ${toast.bad ? "bad" : ""}`} role=${toast.bad ? "alert" : "status"}>
        <div>
          ${toast.text}
          ${toast.details.length > 0 && html`<ul>${toast.details.map((line) => html`<li>${line}</li>`)}</ul>`}
        </div>
        <${Button} icon="close" label="Dismiss" quiet onClick=${() => dismiss(toast.id)} />
      </div>`,
    )}
  </div>`;
}
