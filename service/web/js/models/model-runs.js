import { all, get, remove, useResource } from "../core/api.js";
import { bytes, count, duration, figure, label, number, percent } from "../core/format.js";
import { may } from "../core/session.js";
import { attempt } from "../core/toasts.js";
import { Button, Select } from "../ui/controls.js";
import { Ago, Meter, StatusChip, Table } from "../ui/values.js";
import { confirm } from "../ui/dialog.js";
import { Failure } from "../ui/state.js";
import { html, useState } from "../vendor.js";
import { NeighborDialog } from "./neighbor-dialog.js";
import { RunDialog } from "./run-dialog.js";

const KINDS = /** @type {const} */ (["evaluations", "embeddings", "exports"]);
const HEADLINES = [
  "linear_top1",
  "knn_top1",
  "recall_at_1",
  "instance_recall_at_1",
  "effective_rank",
];
const isOver = (/** @type {Api.ModelRunView} */ run) =>
  run.state === "succeeded" || run.state === "failed";

/**
 * What a finished model can do, and what it has done: evaluations, embeddings and exports of a checkpoint.
 * @param {{job: Api.JobView, checkpoints: Api.CheckpointView[]}} props
 */
export function ModelRuns({ job, checkpoints }) {
  const [id, setId] = useState(checkpoints[0].id);
  const checkpoint = checkpoints.find((each) => each.id === id) ?? checkpoints[0];
  const [opened, setOpened] = useState("");
  const runs = useResource((signal) => load(checkpoint, signal), [checkpoint.id], {
    every: (answer) => (answer?.runs.some((run) => !isOver(run)) ? 2 : 0),
  });
  const close = () => setOpened("");
  const rows = runs.data?.runs ?? [];
  return html`<section class="card">
    <header class="card-head">
      <h2>The model at work</h2>
      <span class="actions">
        <${Select} label="Checkpoint" options=${checkpoints.map((each) => [each.id, `Epoch ${number(each.epoch)}${each.final ? ", final" : ""}`])} value=${checkpoint.id} onChange=${setId} />
        ${may("submit") && html`<${Button} label="Evaluate" onClick=${() => setOpened("evaluations")} /><${Button} label="Embed" onClick=${() => setOpened("embeddings")} /><${Button} label="Export" onClick=${() => setOpened("exports")} />`}
        <${Button} icon="search" label="Neighbors" onClick=${() => setOpened("neighbors")} />
      </span>
    </header>
    ${runs.error && html`<${Failure} error=${runs.error} onRetry=${runs.reload} />`}
    ${runs.data && !rows.length && html`<p class="muted">Evaluate this backbone on another data set, embed images with it, or export it: nothing needs to be downloaded.</p>`}
    ${
      rows.length > 0 &&
      html`<${Table} label="Runs of the model" head=${html`<th>Run</th><th>Data set</th><th>State</th><th>Result</th><th>Files</th><th class="right">Requested</th><th></th>`}>
      ${rows.map((run) => html`<${Row} key=${run.id} run=${run} name=${runs.data?.names.get(run.dataset_id ?? "")} reload=${runs.reload} />`)}
    <//>`
    }
    ${opened === "neighbors" && html`<${NeighborDialog} job=${job} checkpoint=${checkpoint} onClose=${close} onEmbed=${() => setOpened("embeddings")} />`}
    ${KINDS.filter((kind) => kind === opened).map((kind) => html`<${RunDialog} key=${kind} kind=${kind} checkpoint=${checkpoint} onClose=${close} onDone=${runs.reload} />`)}
  </section>`;
}

/** @param {Api.CheckpointView} checkpoint @param {AbortSignal} signal */
async function load(checkpoint, signal) {
  const lists = await Promise.all(
    KINDS.map((kind) => all(`/v1/checkpoints/${checkpoint.id}/${kind}`, {}, signal)),
  );
  const runs = lists.flat().sort((one, other) => (one.created_at < other.created_at ? 1 : -1));
  const datasets = runs.some((run) => run.dataset_id)
    ? (await get("/v1/datasets", { limit: 200 }, signal)).data
    : [];
  return { runs, names: new Map(datasets.map((dataset) => [dataset.id, dataset.name])) };
}

/** @param {{run: Api.ModelRunView, name?: string, reload: () => void}} props */
function Row({ run, name, reload }) {
  const { features, format, normalize, dtype } = run.settings;
  const settings = [features, format, dtype === "float16" && dtype, normalize && "normalized"]
    .filter(Boolean)
    .join(", ");
  const drop = async () => {
    const text = isOver(run) ? "Its files are removed for good." : "It is stopped.";
    const agreed = await confirm(`Delete the ${run.kind}?`, text, "Delete");
    if (agreed && (await attempt(() => remove(`/v1/model-runs/${run.id}`), "Deleted."))) reload();
  };
  return html`<tr>
    <td>${run.kind} <span class="muted">${settings}</span></td>
    <td>${run.dataset_id ? html`${name ?? run.dataset_id} <span class="muted">v${run.dataset_version}</span>` : "–"}</td>
    <td>${run.state === "running" ? html`<${Progress} run=${run} />` : html`<${StatusChip} status=${run.state} />`}</td>
    <td class="why">${run.error ? html`<span class="field-problem">${run.error.message}</span>` : resultOf(run)}</td>
    <td>${run.files.map((file) => html`<a class="file" href=${`v1/model-runs/${run.id}/files/${file.name.split("/").map(encodeURIComponent).join("/")}`} download=${file.name}>${file.name}</a> <span class="muted">${bytes(file.size)}</span><br />`)}</td>
    <td class="right"><${Ago} at=${run.created_at} /></td>
    <td class="row-actions">${may("submit") && html`<${Button} icon="trash" label="Delete" quiet kind="danger" onClick=${drop} />`}</td>
  </tr>`;
}

/** @param {{run: Api.ModelRunView}} props */
function Progress({ run }) {
  const {
    images_read = 0,
    images_total = 0,
    phase = "starting",
    seconds_left,
  } = run.progress ?? {};
  return html`<span class="progress narrow">
    <${Meter} value=${images_total ? images_read / images_total : 0} label=${`Progress of the ${run.kind}`} />
    <span class="progress-text"><span>${phase}</span><span class="muted">${seconds_left ? duration(seconds_left) : images_total ? percent(images_read / images_total, 0) : ""}</span></span>
  </span>`;
}

/** @param {Api.ModelRunView} run */
function resultOf({ kind, result }) {
  if (!result) return "";
  if (kind === "embedding")
    return `${count(result.images)} images, ${(result.shape ?? []).join(" x ")} numbers each${result.unreadable ? `, ${count(result.unreadable)} unreadable` : ""}`;
  const { backbone = {}, raw = {} } = result.metrics ?? {};
  const found = HEADLINES.filter((name) => typeof backbone[name] === "number");
  return found
    .map(
      (name) =>
        `${label(name)} ${figure(name, backbone[name])}${typeof raw[name] === "number" ? ` (raw pixels ${figure(name, raw[name])})` : ""}`,
    )
    .join(", ");
}
