import { get } from "../core/api.js";
import { ago, moment, number } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { link } from "../core/router.js";
import { Meter } from "../ui/meter.js";
import { Loaded } from "../ui/state.js";
import { html } from "../vendor.js";
import { Nodes } from "./nodes.js";
import { Storage } from "./storage.js";
import { Usage } from "./usage.js";

/** Nodes and their use, storage, and who used how much. */
export function ClusterPage() {
  const cluster = useResource((signal) => get("/v1/cluster", {}, signal), [], { every: 5 });
  return html`<div class="page">
    <div class="page-head"><h1>Cluster</h1></div>
    <${Loaded} resource=${cluster} what="the cluster">
      ${(data) => html`<${Overview} cluster=${data} /><${Nodes} cluster=${data} reload=${cluster.reload} />`}
    <//>
    <${Storage} />
    <${Usage} />
  </div>`;
}

/** @param {{cluster: Api.ClusterView}} props */
function Overview({ cluster }) {
  return html`${
    cluster.rest &&
    html`<div class="notice gray"><strong>Ray is ${cluster.rest}</strong><p>A job, data set or visit starts it, in ten seconds or more.</p></div>`
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
      <div><dt>Service started</dt><dd title=${moment(cluster.api_started_at)}>${ago(cluster.api_started_at)}</dd></div>
    </dl>`;
}

/** @param {{part: number, whole: number, name: string}} props */
function Share({ part, whole, name }) {
  return html`<span class="progress"><${Meter} value=${whole ? part / whole : 0} label=${name} /><span>${number(part)} of ${number(whole)}</span></span>`;
}
