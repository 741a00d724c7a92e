import { get, useResource } from "../core/api.js";
import { duration, moment } from "../core/format.js";
import { link } from "../core/router.js";
import { StatusChip } from "../ui/values.js";
import { Empty, Loaded } from "../ui/state.js";
import { html } from "../vendor.js";
import { JobError } from "./job-head.js";

/** The attempts of a job, the newest first, and why they failed. @param {JobProps} props */
export function AttemptsView({ job }) {
  const resource = useResource(
    async (signal) => (await get(`/v1/jobs/${job.id}/attempts`, {}, signal)).data,
    [job.id, job.attempt, job.status],
  );
  return html`<${Loaded} resource=${resource} what="attempts">
    ${(rows) => (rows.length ? [...rows].reverse().map((row) => html`<${Attempt} key=${row.number} job=${job} row=${row} />`) : html`<${Empty} title="Not started yet" />`)}
  <//>`;
}

/** @param {{job: Api.JobView, row: Api.AttemptView}} props */
function Attempt({ job, row }) {
  const seconds =
    (Date.parse(row.finished_at ?? new Date().toISOString()) - Date.parse(row.created_at)) / 1000;
  return html`<section class="card attempt">
    <h2>Attempt ${row.number} <${StatusChip} status=${row.state} /></h2>
    <p class="muted">
      ${moment(row.created_at)} · ${duration(seconds)}${row.workers ? ` · ${row.workers} ${row.workers === 1 ? "rank" : "ranks"}` : ""}
      ${row.resume_checkpoint_id && html` · from <code>${row.resume_checkpoint_id}</code>`} · <a href=${link(["jobs", job.id, "log"], { attempt: String(row.number) })}>log</a>
    </p>
    ${row.stop_reason && html`<p>Stopped by the service: ${row.stop_reason}.</p>`}
    ${row.error && html`<${JobError} error=${row.error} log="its log" />`}
  </section>`;
}
