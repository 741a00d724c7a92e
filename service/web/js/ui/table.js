import { html } from "../vendor.js";

/**
 * A table that scrolls sideways: `head` has the headings, `children` the rows; `flush` makes it a card.
 * @param {{label: string, head: Content, flush?: boolean, children: Content}} props
 */
export function Table({ label, head, flush, children }) {
  return html`<div class=${flush ? "scroll-x card flush" : "scroll-x"} tabindex="0" role="region" aria-label=${label}>
    <table class="plain-table"><thead><tr>${head}</tr></thead><tbody>${children}</tbody></table>
  </div>`;
}
