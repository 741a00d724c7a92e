import { get } from "../core/api.js";
import { count, moment } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { Table } from "../ui/table.js";
import { html } from "../vendor.js";

/** The versions of a data set, and what each changed. @param {{dataset: Api.DatasetView}} props */
export function Versions({ dataset }) {
  const { data } = useResource(
    (signal) => get(`/v1/datasets/${dataset.id}/versions`, {}, signal),
    [dataset.id, dataset.version],
  );
  if (!data) return null;
  return html`<section class="card">
    <h2>Versions</h2>
    <${Table} label="Versions" head=${html`<th>Version</th><th>Read</th><th class="right">Images</th><th class="right">Added</th><th class="right">Removed</th><th class="right">Changed</th>`}>
      ${data.data.map(
        ({ number, created_at, facts, changes, removed }) => html`<tr>
          <td>${number}${removed && html` <span class="muted">removed</span>`}</td>
          <td>${moment(created_at)}</td>
          <td class="right">${count(facts?.num_images)}</td>
          <td class="right">${count(changes?.added)}</td><td class="right">${count(changes?.removed)}</td><td class="right">${count(changes?.changed)}</td>
        </tr>`,
      )}
    <//>
  </section>`;
}
