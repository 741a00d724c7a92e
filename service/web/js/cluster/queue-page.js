import { get, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { ago, moment } from "../core/format.js";
import { link } from "../core/router.js";
import { Empty, Loaded } from "../ui/state.js";
import { Ago, Table } from "../ui/values.js";
import { html } from "../vendor.js";

/** The queue in its order, and what each job waits for. */
export function QueuePage() {
  const cluster = useResource((signal) => get("/v1/cluster", {}, signal), [], { every: 5 });
  useEvents((event) => event.type === "status" && cluster.reload(), cluster.reload);
  return html`<div class="page">
    <div class="page-head"><h1>Queue</h1>${cluster.data && html`<span class="muted">${cluster.data.queued} ${cluster.data.queued === 1 ? "job waits" : "jobs wait"}</span>`}</div>
    <${Loaded} resource=${cluster} what="the queue">
      ${(data) => (data.queue.length ? html`<${Queue} jobs=${data.queue} queued=${data.queued} />` : html`<${Empty} title="The queue is empty"><p>Jobs start as soon as their CPUs and GPUs are free.</p><//>`)}
    <//>
  </div>`;
}

/** @param {{jobs: Api.QueuedJob[], queued: number}} props */
function Queue({ jobs, queued }) {
  return html`<${Table} label="Queue" flush head=${html`<th class="right">#</th><th>Job</th><th>Waits for</th><th>Why</th><th>Starts by</th><th class="right">Priority</th><th class="right">Submitted</th>`}>
      ${jobs.map(
        (job, index) => html`<tr key=${job.id}>
          <td class="right muted">${index + 1}</td>
          <td><a href=${link(["jobs", job.id])}>${job.name}</a></td>
          <td>${job.waits_for ? html`<span class="tag small">${job.waits_for.replaceAll("-", " ")}</span>` : html`<span class="muted">about to start</span>`}</td>
          <td class="why">${job.reason}</td>
          <td title=${job.starts_by ? "At the latest, unless a job of higher priority arrives" : ""}>${job.starts_by ? `${moment(job.starts_by)} (${ago(job.starts_by)})` : "–"}</td>
          <td class="right">${job.priority}</td>
          <td class="right"><${Ago} at=${job.created_at} /></td>
        </tr>`,
      )}
    <//>
    ${queued > jobs.length && html`<p class="muted">The first ${jobs.length} of ${queued}.</p>`}`;
}
