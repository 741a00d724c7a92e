import { get, post, useResource } from "../core/api.js";
import { ago, bytes, count, number } from "../core/format.js";
import { link } from "../core/router.js";
import { may } from "../core/session.js";
import { attempt } from "../core/toasts.js";
import { Button, Segmented } from "../ui/controls.js";
import { confirm } from "../ui/dialog.js";
import { Failure, Loaded } from "../ui/state.js";
import { Ago, Meter, Table } from "../ui/values.js";
import { html, useState } from "../vendor.js";

const REST = {
  idle: "It starts within a minute when there is work, or when somebody opens the page.",
  starting: "Jobs start when it runs, within a minute.",
};

/** Nodes and their use, storage, and who used how much. */
export function ClusterPage() {
  const cluster = useResource((signal) => get("/v1/cluster", {}, signal), [], { every: 5 });
  return html`<div class="page">
    <div class="page-head"><h1>Cluster</h1></div>
    <${Loaded} resource=${cluster} what="the cluster">
      ${(data) => html`<${Overview} cluster=${data} /><${Nodes} cluster=${data} reload=${cluster.reload} />`}
    <//>
    ${may("admin") && html`<${Storage} />`}
    <${Usage} />
  </div>`;
}

/** @param {{cluster: Api.ClusterView}} props */
function Overview({ cluster }) {
  return html`${
    cluster.rest &&
    html`<div class="notice gray"><strong>Ray is ${cluster.rest}</strong><p>${REST[cluster.rest]}</p></div>`
  }
  ${
    !cluster.alive &&
    !cluster.rest &&
    html`<div class="notice red" role="alert"><strong>Ray does not answer</strong><p>${cluster.at ? `Last seen ${ago(cluster.at)}. ` : ""}Jobs wait until it does.</p></div>`
  }
    <dl class="figures">
      <div><dt>CPUs allocated</dt><dd><${Share} part=${cluster.allocated_cpus} whole=${cluster.total_cpus} name="CPUs allocated" /></dd></div>
      ${cluster.total_gpus > 0 && html`<div><dt>GPUs allocated</dt><dd><${Share} part=${cluster.allocated_gpus} whole=${cluster.total_gpus} name="GPUs allocated" /></dd></div>`}
      <div><dt>Queued jobs</dt><dd><a href=${link(["queue"])}>${cluster.queued}</a></dd></div>
      <div><dt>Ray</dt><dd>${cluster.ray_version ?? "–"}${cluster.ray_tested === false ? html` <span class="muted">(not tested)</span>` : ""}</dd></div>
      <div><dt>Service started</dt><dd><${Ago} at=${cluster.api_started_at} /></dd></div>
    </dl>`;
}

/** @param {{part: number, whole: number, name: string}} props */
function Share({ part, whole, name }) {
  return html`<span class="progress"><${Meter} value=${whole ? part / whole : 0} label=${name} /><span>${number(part)} of ${number(whole)}</span></span>`;
}

/** The nodes, what of them is in use, and their drains. @param {{cluster: Api.ClusterView, reload: () => void}} props */
function Nodes({ cluster, reload }) {
  const isOperator = may("operator");
  const drain = async (/** @type {Api.ClusterView["nodes"][number]} */ node) => {
    const text =
      "It gets no new workers. Attempts there save a checkpoint, and their jobs are queued again.";
    const agreed = await confirm(`Drain ${node.name || node.id}?`, text, "Drain", "primary");
    if (agreed && (await attempt(() => post("/v1/cluster/drain", { node: node.id }), "Drained.")))
      reload();
  };
  const undrain = async (/** @type {string | null} */ node) => {
    if (await attempt(() => post("/v1/cluster/undrain", { node }), "In use again.")) reload();
  };
  return html`<section class="card">
    <h2>Nodes${cluster.rest && html` <span class="muted">when Ray ran last</span>`}</h2>
    ${cluster.nodes.length === 0 && html`<p class="muted">None is known yet.</p>`}
    ${
      cluster.nodes.length > 0 &&
      html`<${Table} label="Nodes" head=${html`<th>Node</th><th>CPUs in use</th><th>GPUs in use</th><th>GPU</th><th>State</th><th></th>`}>
      ${cluster.nodes.map(
        (node) => html`<tr key=${node.id}>
          <td>${node.name || node.address || node.id}</td>
          <td><${Use} used=${node.used_cpus} total=${node.total_cpus} name="CPUs" /></td>
          <td>${node.total_gpus ? html`<${Use} used=${node.used_gpus} total=${node.total_gpus} name="GPUs" />` : "–"}</td>
          <td>${node.gpu_type ?? "–"}</td>
          <td>${node.drained ? "drained" : cluster.rest ? "–" : "in use"}</td>
          <td class="row-actions">
            ${
              isOperator &&
              (node.drained
                ? html`<${Button} label="Undrain" onClick=${() => undrain(node.id)} />`
                : html`<${Button} label="Drain" onClick=${() => drain(node)} />`)
            }
          </td>
        </tr>`,
      )}
    <//>`
    }
    ${
      cluster.drains.length > 0 &&
      html`<ul class="plain-list">
      ${cluster.drains.map(
        (
          each,
        ) => html`<li>${each.node ?? "The whole cluster"} is drained since ${ago(each.created_at)}${each.reason ? `: ${each.reason}` : ""}
          ${isOperator && html`<${Button} label="End" onClick=${() => undrain(each.node)} />`}</li>`,
      )}
    </ul>`
    }
  </section>`;
}

/** @param {{used: number, total: number, name: string}} props */
function Use({ used, total, name }) {
  return html`<span class="progress narrow"><${Meter} value=${total ? used / total : 0} label=${`${name} in use`} /><span>${number(used)} / ${number(total)}</span></span>`;
}

/** What the jobs take on the disk; only administrators may ask. */
function Storage() {
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

const DAYS = { 7: "7 days", 30: "30 days", 90: "90 days" };

/** GPU- and CPU-hours of the last days. */
function Usage() {
  const [days, setDays] = useState("30");
  const { data, error, reload } = useResource(
    (signal) =>
      get(
        "/v1/usage",
        { from: new Date(Date.now() - Number(days) * 86_400_000).toISOString(), group_by: "user" },
        signal,
      ),
    [days],
  );
  return html`<section class="card">
    <header class="card-head">
      <h2>Use of the cluster</h2>
      <${Segmented} label="Period" options=${DAYS} value=${days} onChange=${setDays} />
    </header>
    ${error && html`<${Failure} error=${error} onRetry=${reload} />`}
    ${
      data &&
      (data.data.length === 0
        ? html`<p class="muted">No use in this time.</p>`
        : html`<${Table} label="Use of the cluster" head=${html`<th>Who</th><th class="right">Jobs</th><th class="right">GPU-hours</th><th class="right">CPU-hours</th>`}>
          ${data.data.map((group) => html`<tr><td>${group.name ?? group.value ?? "without a user"}</td><td class="right">${count(group.jobs)}</td><td class="right">${hours(group.gpu_hours)}</td><td class="right">${hours(group.cpu_hours)}</td></tr>`)}
        <//>`)
    }
  </section>`;
}

/** Hours with two decimals, as bills have them. @param {number} value */
function hours(value) {
  if (value > 0 && value < 0.01) return "< 0.01";
  return value.toLocaleString("en", { maximumFractionDigits: 2 });
}
