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
