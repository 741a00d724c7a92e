// How values are shown: states, facts, tables and meters.

import { ago, moment } from "../core/format.js";
import { html } from "../vendor.js";

/**
 * @satisfies {Record<Api.JobStatus, string> & Record<string, string>}
 * @type {Record<string, string>}
 */
const TONES = {
  running: "blue",
  starting: "blue",
  ingesting: "blue",
  uploading: "blue",
  succeeded: "green",
  ready: "green",
  failed: "red",
  lost: "red",
  paused: "amber",
  pausing: "amber",
  retry_wait: "amber",
  cancelling: "gray",
  cancelled: "gray",
  queued: "gray",
  pending: "gray",
};

/** The state of a job, attempt or data set: a colored dot and its name. @param {{status: string}} props */
export function StatusChip({ status }) {
  const moving = ["running", "starting", "ingesting", "pausing", "cancelling"].includes(status);
  return html`<span class=${`chip ${TONES[status] ?? "gray"} ${moving ? "moving" : ""}`}>
    <span class="dot"></span>${status.replaceAll("_", " ")}
  </span>`;
}

/** @type {Record<string, string>} */
const VERDICTS = {
  healthy: "green",
  still_rising: "blue",
  falling: "amber",
  no_better: "amber",
  collapsed: "red",
  too_few_images: "gray",
};

/** The verdict on a training in one word; its sentence is the tooltip. @param {Pick<AnyJob, "verdict">} props */
export function VerdictChip({ verdict }) {
  if (!verdict) return null;
  const tone = VERDICTS[verdict.verdict] ?? "gray";
  return html`<span class=${`chip plain ${tone}`} title=${verdict.message}>${verdict.verdict.replaceAll("_", " ")}</span>`;
}

/** Tags of a job, as `key: value`. @param {{tags: AnyJob["tags"], onPick: (tag: string) => void}} props */
export function Tags({ tags, onPick }) {
  return html`${Object.entries(tags).map(
    ([key, value]) => html`<button
      type="button"
      class="tag"
      title="Show only jobs with this tag"
      onClick=${(event) => {
        event.stopPropagation();
        onPick(`${key}:${value}`);
      }}
    ><span class="muted">${key}</span> ${value}</button>`,
  )}`;
}

/**
 * A table that scrolls sideways: `head` has the headings, `children` the rows; `flush` makes it a card.
 * @param {{label: string, head: Content, flush?: boolean, children: Content}} props
 */
export function Table({ label, head, flush, children }) {
  return html`<div class=${flush ? "scroll-x card flush" : "scroll-x"} tabindex="0" role="region" aria-label=${label}>
    <table class="plain-table"><thead><tr>${head}</tr></thead><tbody>${children}</tbody></table>
  </div>`;
}

/** How long ago, with the moment as a tooltip. @param {{at: string | null | undefined}} props */
export const Ago = ({ at }) => html`<span title=${moment(at)}>${ago(at)}</span>`;

/**
 * Names and values, in columns; values that are missing are left out. `large` values are headlines.
 * @param {{items: [string, Content][], large?: boolean}} props
 */
export function Facts({ items, large }) {
  const known = items.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return html`<dl class=${large ? "figures" : "facts"}>
    ${known.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

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
