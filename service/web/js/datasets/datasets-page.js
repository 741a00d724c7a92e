import { get, post, remove, useResource } from "../core/api.js";
import { bytes, count, moment } from "../core/format.js";
import { go, link, setQuery } from "../core/router.js";
import { may } from "../core/session.js";
import { useStore } from "../core/store.js";
import { attempt } from "../core/toasts.js";
import { Button, Icon } from "../ui/controls.js";
import { confirm } from "../ui/dialog.js";
import { Empty, Loaded } from "../ui/state.js";
import { Ago, Facts, Meter, StatusChip, Table } from "../ui/values.js";
import { AddDialog } from "./add-dialog.js";
import { Report } from "./report.js";
import { send, stop, uploads } from "./uploads.js";
import { Views } from "./views.js";
import { html } from "../vendor.js";

/** `#/datasets` is the list, `#/datasets/DATASET` one of them. @param {ViewProps} props */
export function DatasetsPage({ rest, query }) {
  return rest.length
    ? html`<${DatasetPage} key=${rest[0]} id=${rest[0]} />`
    : html`<${List} isAdding=${query.has("add")} />`;
}

/** @param {{isAdding: boolean}} props */
function List({ isAdding }) {
  const resource = useResource((signal) => get("/v1/datasets", { limit: 200 }, signal), [], {
    every: (answer) => (answer?.data.some(isMoving) ? 2 : 20),
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

/** @param {{rows: Api.DatasetSummary[]}} props */
function Datasets({ rows }) {
  return html`<${Table} label="Data sets" flush head=${html`<th>Name</th><th>State</th><th class="right">Images</th><th class="right">Classes</th><th class="right">Median side</th><th class="right">Skipped</th><th class="right">Version</th><th>Where</th><th class="right">Added</th>`}>
    ${rows.map(
      (row) => html`<tr key=${row.id}>
        <td><a href=${link(["datasets", row.id])}>${row.name}</a></td>
        <td><${StatusChip} status=${row.refresh?.state ?? row.state} /></td>
        <td class="right">${count(row.facts?.num_images)}</td>
        <td class="right">${count(row.facts?.num_classes)}</td>
        <td class="right">${row.facts ? `${row.facts.median_size} px` : "–"}</td>
        <td class="right">${row.num_skipped ? count(row.num_skipped) : "–"}</td>
        <td class="right">${row.facts ? row.version : "–"}</td>
        <td class="where muted" title=${whereOf(row)}>${whereOf(row)}</td>
        <td class="right"><${Ago} at=${row.created_at} /></td>
      </tr>`,
    )}
  <//>`;
}

/** One data set: what was found in it, what was skipped and why, its versions and views. @param {{id: string}} props */
function DatasetPage({ id }) {
  const resource = useResource(
    (signal) => get(`/v1/datasets/${encodeURIComponent(id)}`, {}, signal),
    [id],
    { every: (answer) => (isMoving(answer) ? 1.5 : 0) },
  );
  return html`<div class="page">
    <${Loaded} resource=${resource} what="the data set">
      ${(data) => html`<${Dataset} data=${data} reload=${resource.reload} />`}
    <//>
  </div>`;
}

/** @param {{data: Api.DatasetView, reload: () => void}} props */
function Dataset({ data, reload }) {
  const state = data.refresh?.state ?? data.state;
  const problem = data.error ?? data.refresh?.error;
  return html`<${Head} dataset=${data} state=${state} reload=${reload} />
    ${problem && html`<div class="notice red" role="alert"><strong>${data.error ? "Not usable" : "The refresh failed"}</strong><p>${problem.message}</p>${data.upload && html`<p>What was uploaded cannot be changed: remove this data set, and upload the images again.</p>`}</div>`}
    ${isMoving(data) && (data.upload && state === "uploading" ? html`<${Upload} id=${data.id} upload=${data.upload} />` : html`<${Progress} state=${state} progress=${data.progress} />`)}
    <${Facts}
      items=${[
        ["Images", data.facts && count(data.facts.num_images)],
        ["Classes", data.facts && count(data.facts.num_classes)],
        ["Median shorter side", data.facts && `${data.facts.median_size} px`],
        ["Pixels", data.facts?.dtype && `${data.facts.bands} x ${data.facts.dtype}`],
        ["Where", html`<code>${whereOf(data)}</code>`],
        ["Split", data.source?.split],
        ["Added", moment(data.created_at)],
      ]}
    />
    ${data.report && html`<${Report} dataset=${data} report=${data.report} />`}
    ${data.state === "ready" && html`<${Views} datasetId=${data.id} /><${Versions} dataset=${data} />`}`;
}

/** Where its images are; of an upload its file, as the path is one of the server's own. @param {Api.DatasetSummary} dataset */
function whereOf({ uri, upload }) {
  return upload ? `uploaded: ${upload.filename}` : uri;
}

/** @param {Api.DatasetSummary | undefined} dataset */
function isMoving(dataset) {
  const state = dataset?.refresh?.state ?? dataset?.state;
  return state !== undefined && state !== "ready" && state !== "failed";
}

/** @param {{dataset: Api.DatasetView, state: string, reload: () => void}} props */
function Head({ dataset, state, reload }) {
  const refresh = async () => {
    const path = /** @type {const} */ (`/v1/datasets/${dataset.id}/refresh`);
    if (await attempt(() => post(path), "The images are read again.")) reload();
  };
  const drop = async () => {
    const text = dataset.upload
      ? "What was uploaded is removed for good."
      : "Its images stay where they are.";
    if (!(await confirm(`Remove ${dataset.name}?`, text, "Remove"))) return;
    const upload = uploads.get().get(dataset.id);
    stop(dataset.id);
    if (await attempt(() => remove(`/v1/datasets/${dataset.id}`), "Removed.")) go(["datasets"]);
    else if (upload) void send(dataset.id, upload.content, upload.received);
  };
  return html`<header class="job-head">
    <p class="crumbs"><a href=${link(["datasets"])}>Data sets</a> <span class="muted">/</span> <code class="muted">${dataset.id}</code></p>
    <div class="title-line">
      <h1>${dataset.name}</h1><${StatusChip} status=${state} />${dataset.facts && html`<span class="muted">version ${dataset.version}</span>`}
      <span class="grow"></span>
      <div class="actions">
        <a class="button" href=${link(["jobs"], { dataset: dataset.name })}><span>Its jobs</span></a>
        ${
          may("submit") &&
          html`${dataset.state === "ready" && html`<a class="button primary" href=${link(["submit"], { dataset: dataset.name })}><${Icon} name="plus" /><span>New job</span></a>`}
          ${state !== "uploading" && html`<${Button} icon="refresh" label="Read again" onClick=${refresh} />`}
          <${Button} icon="trash" label="Remove" kind="danger" onClick=${drop} />`
        }
      </div>
    </div>
  </header>`;
}

/** Progress of an upload, and whether this tab sends it. @param {{id: string, upload: Api.UploadView}} props */
function Upload({ id, upload: { size, received: stored } }) {
  const upload = useStore(uploads).get(id);
  const received = Math.max(stored, upload?.received ?? 0);
  if (received === size)
    return html`<div class="notice gray"><strong>The upload is complete. Its images will be checked and read.</strong></div>`;
  return html`<div class=${`notice ${upload?.error ? "red" : "gray"}`} role=${upload?.error ? "alert" : undefined}>
    <strong>${upload?.error ? "The upload stopped" : "Uploading"}</strong>
    <span class="progress"><${Meter} value=${received / size} label="Uploaded" /><span>${bytes(received)} of ${bytes(size)}</span></span>
    ${
      upload?.error
        ? html`<p>${upload.error.message}</p><${Button} icon="refresh" label="Resume" onClick=${() => void send(id, upload.content, received)} />`
        : html`${upload?.retrying && html`<p>Retrying after an error: ${upload.retrying.message}</p>`}<p>${upload ? "Keep this page open until the upload is complete." : "This tab is not uploading. To resume an interrupted upload, add the same files under the same name."}</p>`
    }
  </div>`;
}

/** @param {{state: string, progress: Api.DatasetView["progress"]}} props */
function Progress({ state, progress }) {
  if (!progress?.images_total)
    return html`<div class="notice gray"><strong>${state === "pending" ? "Waits for its turn" : "Begins"}</strong></div>`;
  const share = progress.images_read / progress.images_total;
  return html`<div class="notice gray">
    <strong>Reading: ${progress.phase ?? "images"}</strong>
    <span class="progress"><${Meter} value=${share} label="Images read" /><span>${count(progress.images_read)} of ${count(progress.images_total)}</span></span>
  </div>`;
}

/** The versions of a data set, and what each changed. @param {{dataset: Api.DatasetView}} props */
function Versions({ dataset }) {
  const { data } = useResource(
    (signal) => get(`/v1/datasets/${dataset.id}/versions`, {}, signal),
    [dataset.id, dataset.version],
  );
  if (!data) return null;
  return html`<section class="card">
    <h2>Versions</h2>
    <${Table} label="Versions" head=${html`<th>Version</th><th>Read</th><th class="right">Images</th><th class="right">Added</th><th class="right">Removed</th><th class="right">Changed</th><th class="right">Relabeled</th>`}>
      ${data.data.map(
        ({ number, created_at, facts, changes, removed }) => html`<tr>
          <td>${number}${removed && html` <span class="muted">removed</span>`}</td>
          <td>${moment(created_at)}</td>
          <td class="right">${count(facts?.num_images)}</td>
          <td class="right">${count(changes?.added)}</td><td class="right">${count(changes?.removed)}</td><td class="right">${count(changes?.changed)}</td><td class="right">${count(changes?.relabeled)}</td>
        </tr>`,
      )}
    <//>
  </section>`;
}
