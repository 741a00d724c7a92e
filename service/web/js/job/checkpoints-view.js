import { patch, remove } from "../core/api.js";
import { bytes, number, percent } from "../core/format.js";
import { may } from "../core/session.js";
import { attempt } from "../core/toasts.js";
import { Button, Code } from "../ui/controls.js";
import { confirm, Dialog } from "../ui/dialog.js";
import { Empty, later, Loaded } from "../ui/state.js";
import { Ago, Table } from "../ui/values.js";
import { html, useState } from "../vendor.js";
import { useJobList } from "./job-list.js";

const ModelRuns = later(async () => (await import("../models/model-runs.js")).ModelRuns);

/** The checkpoints of a job, the newest first: download, pin, delete, load. @param {JobProps} props */
export function CheckpointsView({ job }) {
  const resource = useJobList(job, `/v1/jobs/${job.id}/checkpoints`, "checkpoint");
  const [opened, setOpened] = useState(/** @type {Api.CheckpointView | null} */ (null));
  return html`<${Loaded} resource=${resource} what="checkpoints">
    ${(all) => {
      const rows = all.filter((each) => each.state !== "deleted").reverse();
      if (!rows.length)
        return html`<${Empty} title="No checkpoints"><p>They are saved at the ends of epochs, every few minutes, and when a job is paused.</p><//>`;
      const best = bestOf(rows, job);
      return html`<${Table} label="Checkpoints" flush head=${html`<th>Checkpoint</th><th class="right">Epoch</th><th class="right">Step</th><th class="right">k-NN</th><th class="right">Size</th><th>Saved</th><th></th>`}>
          ${rows.map((row) => html`<${Row} key=${row.id} row=${row} isBest=${row.id === best} onOpen=${() => setOpened(row)} reload=${resource.reload} />`)}
        <//>
        <${ModelRuns} job=${job} checkpoints=${rows} />
        ${opened && html`<${Files} checkpoint=${opened} onClose=${() => setOpened(null)} />`}`;
    }}
  <//>`;
}

/** @param {{row: Api.CheckpointView, isBest: boolean, onOpen: () => void, reload: () => void}} props */
function Row({ row, isBest, onOpen, reload }) {
  const aliases = [row.final && "final", isBest && "best"].filter(Boolean);
  const checked = row.verification;
  const pin = () =>
    attempt(
      () => patch(`/v1/checkpoints/${row.id}`, { pinned: !row.pinned }),
      row.pinned ? "No longer kept for good." : "Kept, whatever the settings of the job.",
    ).then(reload);
  const drop = async () => {
    const text = `That of step ${row.step} is removed for good.`;
    const agreed = await confirm("Delete the checkpoint?", text, "Delete");
    if (agreed && (await attempt(() => remove(`/v1/checkpoints/${row.id}`), "Deleted."))) reload();
  };
  return html`<tr>
    <td><code>${row.id}</code> ${aliases.map((alias) => html`<span class="tag small">${alias}</span>`)}${checked && html`<span class="tag small" title=${checked.summary}>${checked.passed ? "verified" : "not as certified"}</span>`}</td>
    <td class="right">${number(row.epoch)}</td>
    <td class="right">${row.step}</td>
    <td class="right">${percent(row.metrics.knn_top1)}</td>
    <td class="right">${bytes(row.files.reduce((sum, file) => sum + file.size, 0))}</td>
    <td><${Ago} at=${row.created_at} /></td>
    <td class="row-actions">
      <${Button} icon="download" label="Files and how to load them" quiet onClick=${onOpen} />
      ${
        may("submit") &&
        html`<${Button} icon="pin" label=${row.pinned ? "Unpin" : "Pin: keep it for good"} quiet pressed=${row.pinned} onClick=${pin} />
        <${Button} icon="trash" label="Delete" quiet kind="danger" onClick=${drop} />`
      }
    </td>
  </tr>`;
}

/** @param {{checkpoint: Api.CheckpointView, onClose: () => void}} props */
function Files({ checkpoint, onClose }) {
  return html`<${Dialog} title="Checkpoint files" onClose=${onClose} wide>
    <ul class="files">
      ${checkpoint.files.map(
        (file) =>
          html`<li><a href=${`v1/checkpoints/${checkpoint.id}/files/${encodeURIComponent(file.name)}`} download=${file.name}>${file.name}</a><span class="muted">${bytes(file.size)}</span></li>`,
      )}
    </ul>
    <h3>Download and verify</h3>
    <${Code} text=${`dasl download ${checkpoint.id} -o checkpoint`} />
    <h3>Load the backbone, in that folder</h3>
    <${Code} text=${SNIPPET} />
  <//>`;
}

// As in README.md, where lines that feed an image follow.
const SNIPPET = `import json, timm, torch
from safetensors.torch import load_file

about = json.load(open("model.json"))
model = timm.create_model(**about["timm"])
# A ResNet for images below 40 pixels needs the lines that this prints, in its place: they replace the stem.
assert not about["stem"], "\\n".join(about["stem"])
model.load_state_dict(load_file("backbone.safetensors"))
model.eval()  # README.md, the model card, prepares an image for it`;

/**
 * The first of the checkpoints with the best metric, as `checkpoints.best_by` says, or k-NN, or R@1.
 * @param {Api.CheckpointView[]} rows
 * @param {Api.JobView} job
 */
function bestOf(rows, job) {
  const chosen = job.resolved?.checkpoints?.best_by;
  const names = chosen ? [chosen] : ["knn_top1", "recall_at_1"];
  const name = names.find((each) => rows.some((row) => typeof row.metrics?.[each] === "number"));
  if (!name) return undefined;
  const sign = name === "uniformity" ? -1 : 1;
  const measured = rows.filter((row) => typeof row.metrics?.[name] === "number");
  const sorted = measured.sort(
    (one, other) => sign * (other.metrics[name] - one.metrics[name]) || one.step - other.step,
  );
  return sorted[0]?.id;
}
