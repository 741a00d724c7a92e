import { get } from "../core/api.js";
import { ago, moment } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { html } from "../vendor.js";

/** Why a queued job waits, its place, and when it starts at the latest. @param {{job: Api.JobView}} props */
export function Waiting({ job }) {
  const { data } = useResource((signal) => get("/v1/cluster", {}, signal), [job.id], { every: 5 });
  const place = data?.queue.findIndex((each) => each.id === job.id) ?? -1;
  const entry = data?.queue[place];
  if (!data || !entry) return null;
  return html`<div class="notice gray">
    <strong>${place === 0 ? "First in the queue" : `Number ${place + 1} of ${data.queued} in the queue`}</strong>
    ${entry.reason && html`<p>${entry.reason}</p>`}
    ${entry.starts_by && html`<p>Starts by ${moment(entry.starts_by)} (${ago(entry.starts_by)}) at the latest.</p>`}
  </div>`;
}
