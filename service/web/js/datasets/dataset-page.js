import { get, post, remove } from "../core/api.js";
import { bytes, count, moment } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { go, link } from "../core/router.js";
import { may } from "../core/session.js";
import { useStore } from "../core/store.js";
import { attempt } from "../core/toasts.js";
import { Button } from "../ui/button.js";
import { StatusChip } from "../ui/chip.js";
import { confirm } from "../ui/dialog.js";
import { Facts } from "../ui/facts.js";
import { Icon } from "../ui/icon.js";
import { Meter } from "../ui/meter.js";
import { Failure, Loading } from "../ui/state.js";
import { html } from "../vendor.js";
import { Report } from "./report.js";
import { send, stop, uploads } from "./uploads.js";
import { Versions } from "./versions.js";
import { Views } from "./views.js";

/** One data set: what was found in it, what was skipped and why, its versions and views. */
export function DatasetPage({ id }) {
  const { data, error, reload } = useResource((signal) => get(`/v1/datasets/${encodeURIComponent(id)}`, {}, signal), [id], {
    every: (answer) => (isMoving(answer) ? 1.5 : 0),
  });
  const state = data?.refresh?.state ?? data?.state;
  const moves = isMoving(data);
  if (!data) return error ? html`<div class="page"><${Failure} error=${error} onRetry=${reload} /></div>` : html`<${Loading} what="the data set" />`;
  const problem = data.error ?? data.refresh?.error;
  return html`<div class="page">
    <${Head} dataset=${data} state=${state} reload=${reload} />
    ${problem && html`<div class="notice red" role="alert"><strong>${data.error ? "Not usable" : "The refresh failed"}</strong><p>${problem.message ?? problem}</p></div>`}
    ${moves && (state === "uploading" ? html`<${Upload} dataset=${data} />` : html`<${Progress} state=${state} progress=${data.progress} />`)}
    <${Facts}
      items=${[
        ["Images", data.facts && count(data.facts.num_images)],
        ["Classes", data.facts && count(data.facts.num_classes)],
        ["Median shorter side", data.facts && `${data.facts.median_size} px`],
        ["Pixels", data.facts?.dtype && `${data.facts.bands} x ${data.facts.dtype}`],
        ["Where", html`<code>${data.uri}</code>`],
        ["Split", data.source?.split],
        ["Added", moment(data.created_at)],
      ]}
    />
    ${data.report && html`<${Report} dataset=${data} />`}
    ${data.state === "ready" && html`<${Views} datasetId=${data.id} /><${Versions} dataset=${data} />`}
  </div>`;
}

function isMoving(dataset) {
  const state = dataset?.refresh?.state ?? dataset?.state;
  return state !== undefined && state !== "ready" && state !== "failed";
}

function Head({ dataset, state, reload }) {
  const refresh = async () => {
    if (await attempt(() => post(`/v1/datasets/${dataset.id}/refresh`), "The images are read again.")) reload();
  };
  const drop = async () => {
    const text = dataset.upload ? "What was uploaded is removed for good." : "Its images stay where they are.";
    if (!(await confirm({ title: `Remove ${dataset.name}?`, text, action: "Remove", danger: true }))) return;
    const own = uploads.get().get(dataset.id);
    stop(dataset.id);
    if (await attempt(() => remove(`/v1/datasets/${dataset.id}`), "Removed.")) go(["datasets"]);
    else if (own) void send(dataset.id, own.content, own.received);
  };
  return html`<header class="job-head">
    <p class="crumbs"><a href=${link(["datasets"])}>Data sets</a> <span class="muted">/</span> <code class="muted">${dataset.id}</code></p>
    <div class="title-line">
      <h1>${dataset.name}</h1><${StatusChip} status=${state} /><span class="muted">version ${dataset.version}</span>
      <span class="grow"></span>
      <div class="actions">
        <a class="button" href=${link(["jobs"], { dataset: dataset.name })}><span>Its jobs</span></a>
        ${may("submit") &&
        html`${dataset.state === "ready" && html`<a class="button primary" href=${link(["submit"], { dataset: dataset.name })}><${Icon} name="plus" /><span>New job</span></a>`}
          ${state !== "uploading" && html`<${Button} icon="refresh" label="Read again" onClick=${refresh} />`}
          <${Button} icon="trash" label="Remove" kind="danger" onClick=${drop} />`}
      </div>
    </div>
  </header>`;
}

/** Progress of an upload, and whether this tab sends it. */
function Upload({ dataset }) {
  const own = useStore(uploads).get(dataset.id);
  const { size } = dataset.upload;
  const received = Math.max(dataset.upload.received, own?.received ?? 0);
  if (received === size) return html`<div class="notice gray"><strong>The upload is complete. Its images will be checked and read.</strong></div>`;
  return html`<div class=${`notice ${own?.error ? "red" : "gray"}`} role=${own?.error ? "alert" : undefined}>
    <strong>${own?.error ? "The upload stopped" : "Uploading"}</strong>
    <span class="progress"><${Meter} value=${received / size} label="Uploaded" /><span>${bytes(received)} of ${bytes(size)}</span></span>
    ${own?.error
      ? html`<p>${own.error.message}</p><${Button} icon="refresh" label="Resume" onClick=${() => void send(dataset.id, own.content, received)} />`
      : html`${own?.retrying && html`<p>Retrying after an error: ${own.retrying.message}</p>`}<p>${own ? "Keep this page open until the upload is complete." : "This tab is not uploading. To resume an interrupted upload, add the same files under the same name."}</p>`}
  </div>`;
}

function Progress({ state, progress }) {
  if (!progress?.images_total) return html`<div class="notice gray"><strong>${state === "pending" ? "Waits for its turn" : "Begins"}</strong></div>`;
  const share = progress.images_read / progress.images_total;
  return html`<div class="notice gray">
    <strong>Reading: ${progress.phase ?? "images"}</strong>
    <span class="progress"><${Meter} value=${share} label="Images read" /><span>${count(progress.images_read)} of ${count(progress.images_total)}</span></span>
  </div>`;
}
