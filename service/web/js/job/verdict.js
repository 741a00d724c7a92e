import { clock, number } from "../core/format.js";
import { VerdictChip } from "../ui/values.js";
import { Icon } from "../ui/controls.js";
import { html } from "../vendor.js";

/** Events that are shown otherwise: as the job's state, its error and its verdict. */
const SHOWN = ["status", "verdict"];

/** The verdict in words, and the alarms of the newest attempt. @param {{job: Api.JobView, events: Api.EventView[]}} props */
export function Verdict({ job, events }) {
  // A later alarm of the same kind replaces the one before.
  /** @type {Map<string, Api.EventView>} */
  const alarms = new Map();
  for (const event of events) {
    if (event.type === "status" && event.data?.to === "starting") alarms.clear();
    if (event.level !== "info" && !SHOWN.includes(event.type)) alarms.set(event.type, event);
  }
  return html`${[...alarms.values()].map((event) => html`<${Alarm} key=${event.type} event=${event} />`)}
  ${
    job.verdict &&
    html`<div class="verdict">
    <${VerdictChip} verdict=${job.verdict} />
    <p>${withoutKind(job.verdict)}</p>
  </div>`
  }`;
}

/** The message, without the words of the chip beside it. @param {Record<string, any>} props */
function withoutKind({ verdict, message }) {
  const kind = `${verdict.replaceAll("_", " ")}: `;
  return message.startsWith(kind) ? message.slice(kind.length) : message;
}

/** @param {{event: Api.EventView}} props */
function Alarm({ event }) {
  const figures = Object.entries(event.data?.figures ?? {}).filter(
    ([, value]) => typeof value === "number",
  );
  const isError = event.level === "error";
  return html`<div class=${`notice ${isError ? "red" : "amber"}`} role=${isError ? "alert" : "status"}>
    <strong><${Icon} name="warning" /> ${event.type === "collapse" ? `Collapse: ${event.data?.cause?.replaceAll("_", " ")}` : event.type.replaceAll(/[_-]/g, " ")}</strong>
    <p>${event.message}</p>
    <p class="muted small">
      ${clock(event.at)}${figures.map(([name, value]) => ` · ${name.replaceAll("_", " ")} ${number(value)}`)}
    </p>
  </div>`;
}
