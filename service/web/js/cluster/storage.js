import { get } from "../core/api.js";
import { bytes, count } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { link } from "../core/router.js";
import { may } from "../core/session.js";
import { Meter } from "../ui/meter.js";
import { Failure } from "../ui/state.js";
import { html } from "../vendor.js";

/** What the jobs take on the disk; only administrators may ask. */
export function Storage() {
  return may("admin") ? html`<${Report} />` : null;
}

function Report() {
  const { data, error, reload } = useResource((signal) => get("/v1/storage", {}, signal), []);
  if (error && !data) return html`<${Failure} error=${error} onRetry=${reload} />`;
  if (!data) return null;
  const { store } = data;
  const full = store.max_bytes ?? store.total_bytes;
  /** @type {[string, Api.StoredFiles][]} */
  const parts = [
    ["Checkpoints", data.checkpoints],
    ["Pictures and files", data.artifacts],
    ["Embeddings and exports", data.model_runs],
    ["Previews", data.previews],
    ["Uploads", data.uploads],
  ];
  return html`<section class="card">
    <h2>Storage</h2>
    <dl class="figures">
      <div><dt>Stored</dt><dd>${full ? html`<span class="progress"><${Meter} value=${store.bytes / full} label="Storage in use" /><span>${bytes(store.bytes)} of ${bytes(full)}</span></span>` : bytes(store.bytes)}</dd></div>
      ${store.free_bytes !== null && html`<div><dt>Free on the disk</dt><dd>${bytes(store.free_bytes)}</dd></div>`}
      ${parts.map(([name, part]) => html`<div><dt>${name}</dt><dd>${bytes(part.bytes)} <span class="muted">in ${count(part.count)}</span></dd></div>`)}
      <div><dt>Metric values</dt><dd>${count(data.metrics.count)}${data.metrics.more ? " or more" : ""}</dd></div>
    </dl>
    ${
      data.largest_jobs.length > 0 &&
      html`<h3>Largest jobs</h3>
      <table class="plain-table">
        <tbody>${data.largest_jobs.slice(0, 8).map((job) => html`<tr><td><a href=${link(["jobs", job.id, "checkpoints"])}>${job.name}</a></td><td>${job.status}</td><td class="right">${bytes(job.bytes)}</td></tr>`)}</tbody>
      </table>`
    }
  </section>`;
}
