import { html } from "../vendor.js";

/** Names and values, in columns; values that are missing are left out. @param {{items: [string, Content][]}} props */
export function Facts({ items }) {
  const known = items.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return html`<dl class="facts">
    ${known.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}
