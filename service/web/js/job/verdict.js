import { clock, number } from "../core/format.js";
import { VerdictChip } from "../ui/chip.js";
import { Icon } from "../ui/icon.js";
import { html } from "../vendor.js";

/** Events that a person should not overlook, with how serious they are. */
const ALARMS = {
  collapse: "red",
  nan: "amber",
  step_skipped: "amber",
  input_bound: "amber",
  checkpoint_failed: "amber",
  checkpoint_damaged: "amber",
  images_unreadable: "amber",
};

/** The verdict in words, and the alarms of the newest attempt. */
export function Verdict({ job, events }) {
  // A later alarm of the same kind replaces the one before.
  const alarms = new Map();
  for (const event of events) {
    if (event.type === "status" && event.data?.to === "starting") alarms.clear();
    if (ALARMS[event.type]) alarms.set(event.type, event);
  }
  return html`${[...alarms.values()].map((event) => html`<${Alarm} key=${event.type} event=${event} />`)}
  ${job.verdict &&
  html`<div class="verdict">
    <${VerdictChip} verdict=${job.verdict} />
    <p>${withoutKind(job.verdict)}</p>
  </div>`}`;
}

/** The message, without the words of the chip beside it. */
function withoutKind({ verdict, message }) {
  const kind = `${verdict.replaceAll("_", " ")}: `;
  return message.startsWith(kind) ? message.slice(kind.length) : message;
}

function Alarm({ event }) {
  const figures = Object.entries(event.data?.figures ?? {}).filter(([, value]) => typeof value === "number");
  return html`<div class=${`notice ${ALARMS[event.type]}`} role=${event.type === "collapse" ? "alert" : "status"}>
    <strong><${Icon} name="warning" /> ${event.type === "collapse" ? `Collapse: ${event.data?.cause?.replaceAll("_", " ")}` : event.type.replaceAll("_", " ")}</strong>
    <p>${event.message}</p>
    <p class="muted small">
      ${clock(event.at)}${figures.map(([name, value]) => ` · ${name.replaceAll("_", " ")} ${number(value)}`)}
    </p>
  </div>`;
}
