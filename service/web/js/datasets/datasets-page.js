import { get, useResource } from "../core/api.js";
import { count } from "../core/format.js";
import { link, setQuery } from "../core/router.js";
import { may } from "../core/session.js";
import { Button } from "../ui/controls.js";
import { Ago, StatusChip, Table } from "../ui/values.js";
import { Empty, Loaded } from "../ui/state.js";
import { html } from "../vendor.js";
import { AddDialog } from "./add-dialog.js";
import { DatasetPage } from "./dataset-page.js";

/** `#/datasets` is the list, `#/datasets/DATASET` one of them. @param {ViewProps} props */
export function DatasetsPage({ rest, query }) {
  return rest.length
    ? html`<${DatasetPage} key=${rest[0]} id=${rest[0]} />`
    : html`<${List} isAdding=${query.has("add")} />`;
}

/** @param {{isAdding: boolean}} props */
function List({ isAdding }) {
  const moves = (/** @type {Api.Page_DatasetView_ | undefined} */ answer) =>
    answer?.data.some(
      (each) => each.refresh?.state === "ingesting" || !["ready", "failed"].includes(each.state),
    );
  const resource = useResource((signal) => get("/v1/datasets", { limit: 200 }, signal), [], {
    every: (answer) => (moves(answer) ? 2 : 20),
  });
  const add = () => setQuery({ add: "1" });
  return html`<div class="page">
    <div class="page-head">
      <h1>Data sets</h1>
      <span class="grow"></span>
      ${may("submit") && html`<${Button} icon="plus" label="Add a data set" onClick=${add} />`}
    </div>
    <${Loaded} resource=${resource} what="data sets">
      ${({ data }) =>
        data.length
          ? html`<${Datasets} rows=${data} />`
          : html`<${Empty} title="No data sets yet">
              <p>A folder of images is enough, with or without labels; also an archive, a list, a table, or a bucket of an object store.</p>
              ${may("submit") && html`<p><${Button} icon="plus" label="Add a data set" kind="primary" onClick=${add} /></p>`}
            <//>`}
    <//>
    ${isAdding && html`<${AddDialog} onClose=${() => setQuery({ add: null })} onAdded=${resource.reload} />`}
  </div>`;
}

/** @param {{rows: Api.DatasetView[]}} props */
function Datasets({ rows }) {
  return html`<${Table} label="Data sets" flush head=${html`<th>Name</th><th>State</th><th class="right">Images</th><th class="right">Classes</th><th class="right">Median side</th><th class="right">Skipped</th><th class="right">Version</th><th>Where</th><th class="right">Added</th>`}>
    ${rows.map(
      (row) => html`<tr key=${row.id}>
        <td><a href=${link(["datasets", row.id])}>${row.name}</a></td>
        <td><${StatusChip} status=${row.refresh?.state ?? row.state} /></td>
        <td class="right">${count(row.facts?.num_images)}</td>
        <td class="right">${count(row.facts?.num_classes)}</td>
        <td class="right">${row.facts ? `${row.facts.median_size} px` : "–"}</td>
        <td class="right">${row.report?.num_skipped ? count(row.report.num_skipped) : "–"}</td>
        <td class="right">${row.version}</td>
        <td class="where muted" title=${row.uri}>${row.upload ? `uploaded: ${row.upload.filename ?? ""}` : row.uri}</td>
        <td class="right"><${Ago} at=${row.created_at} /></td>
      </tr>`,
    )}
  <//>`;
}
