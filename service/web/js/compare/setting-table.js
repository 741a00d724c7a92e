import { html, useMemo } from "../vendor.js";
import { Table } from "../ui/values.js";
import { differing, flat, shown } from "../job/settings.js";

/**
 * The settings in which the jobs differ; what is not the first job's is marked.
 * @param {{jobs: (Api.JobView & {color: string})[]}} props
 */
export function SettingTable({ jobs }) {
  const key = jobs.map((job) => job.id).join();
  const rows = useMemo(() => {
    const specs = jobs.map(({ resolved, dataset, dataset_version }) => ({
      ...resolved,
      dataset: `${dataset.name}@${dataset_version}`,
      name: undefined,
      tags: undefined,
    }));
    const tables = specs.map((spec) => flat(spec));
    return differing(
      specs,
      jobs.map((job) => job.spec),
    ).map((name) => ({ name, values: tables.map((table) => table.get(name)) }));
  }, [key]);
  if (jobs.length < 2) return null;
  return html`<section class="card">
    <h2>Settings that differ</h2>
    ${
      rows.length === 0
        ? html`<p class="muted">None: these jobs differ by chance alone.</p>`
        : html`<${Table} label="Settings that differ" head=${html`<th>Setting</th>${jobs.map((job) => html`<th><span class="mark" style=${{ "--mark": `var(${job.color})` }}></span>${job.name}</th>`)}`}>
          ${rows.map(
            ({ name, values }) => html`<tr>
              <th scope="row"><code>${name}</code></th>
              ${values.map((value) => html`<td class=${JSON.stringify(value) === JSON.stringify(values[0]) ? "" : "differs"}>${value === null ? "off" : value === undefined && !name.includes(".") ? "on" : shown(value)}</td>`)}
            </tr>`,
          )}
        <//>`
    }
  </section>`;
}
