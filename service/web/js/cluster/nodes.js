import { post } from "../core/api.js";
import { ago, number } from "../core/format.js";
import { may } from "../core/session.js";
import { attempt } from "../core/toasts.js";
import { Button } from "../ui/button.js";
import { confirm } from "../ui/dialog.js";
import { Meter } from "../ui/meter.js";
import { Table } from "../ui/table.js";
import { html } from "../vendor.js";

/** The nodes, what of them is in use, and their drains. @param {{cluster: Api.ClusterView, reload: () => void}} props */
export function Nodes({ cluster, reload }) {
  const isOperator = may("operator");
  const drain = async (/** @type {Api.ClusterView["nodes"][number]} */ node) => {
    const agreed = await confirm({
      title: `Drain ${node.name || node.id}?`,
      text: "It gets no new workers. Attempts there save a checkpoint, and their jobs are queued again.",
      action: "Drain",
    });
    if (agreed && (await attempt(() => post("/v1/cluster/drain", { node: node.id }), "Drained.")))
      reload();
  };
  const undrain = async (/** @type {string | null} */ node) => {
    if (await attempt(() => post("/v1/cluster/undrain", { node }), "In use again.")) reload();
  };
  return html`<section class="card">
    <h2>Nodes</h2>
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
          <td>${node.drained ? "drained" : "in use"}</td>
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
