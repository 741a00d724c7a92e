import { say } from "../core/toasts.js";
import { html } from "../vendor.js";
import { Button } from "./button.js";

/** Lines of code with a button that copies them. @param {{text: string}} props */
export function Code({ text }) {
  return html`<div class="code">
    <pre tabindex="0">${text}</pre>
    <${Button} icon="copy" label="Copy" quiet onClick=${() => copy(text)} />
  </div>`;
}

/** Copy to the clipboard, also where the page is not served by HTTPS. @param {string} text */
async function copy(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say("Copied.");
}
