import { html } from "../vendor.js";

/** A share as a bar. @param {{value: number, label: string, tone?: string}} props `value` from 0 to 1 */
export function Meter({ value, label, tone = "" }) {
  const share = Math.max(0, Math.min(1, value || 0));
  return html`<span
    class=${`meter ${tone}`}
    role="progressbar"
    aria-label=${label}
    aria-valuemin="0"
    aria-valuemax="100"
    aria-valuenow=${Math.round(share * 100)}
    ><span style=${{ width: `${share * 100}%` }}></span
  ></span>`;
}
