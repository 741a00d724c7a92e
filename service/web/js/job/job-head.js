import { get, useResource } from "../core/api.js";
import { ago, moment, number, percent } from "../core/format.js";
import { go, link } from "../core/router.js";
import { may } from "../core/session.js";
import { act, ACTIONS, stateOf } from "../jobs/actions.js";
import { JobProgress, took } from "../jobs/columns.js";
import { Button, Icon } from "../ui/controls.js";
import { Ago, Facts, StatusChip, Tags } from "../ui/values.js";
import { html, useState } from "../vendor.js";
import { EditDialog } from "./edit-dialog.js";

/**
 * Name, state, headline metrics, and what can be done.
 * @param {{job: Api.JobView, onChange: (job: Api.JobView) => void, reload: () => void}} props
 */
export function JobHead({ job, onChange, reload }) {
  const [isEdited, setEdited] = useState(false);
  const run = async (/** @type {import("../jobs/actions.js").Action} */ action) => {
    if (!(await act(action, [job]))) return;
    if (action.name === "delete") go(["jobs"]);
    else reload();
  };
  return html`<header class="job-head">
    <p class="crumbs"><a href=${link(["jobs"])}>Jobs</a> <span class="muted">/</span> <code class="muted">${job.id}</code></p>
    <div class="title-line">
      <h1>${job.name}</h1>
      <${StatusChip} status=${stateOf(job)} />
      <${Tags} tags=${job.tags} onPick=${(tag) => go(["jobs"], { tag })} />
      <span class="grow"></span>
      <div class="actions">
        <a class="button" href=${link(["compare"], { jobs: job.id })}><${Icon} name="compare" /><span>Compare</span></a>
        ${
          may("submit") &&
          html`${ACTIONS.filter((action) => action.applies(job)).map(
            (action) =>
              html`<${Button} key=${action.name} icon=${action.icon} label=${action.title} kind=${action.danger ? "danger" : ""} onClick=${() => run(action)} />`,
          )}
          <${Button} icon="copy" label="Clone" onClick=${() => go(["submit"], { clone: job.id })} />
          <a class="button" href=${link(["experiments"], { new: "1", job: job.id })} title="Train variants of this job with several seeds"><${Icon} name="experiment" /><span>Vary</span></a>
          <${Button} icon="edit" label="Edit" onClick=${() => setEdited(true)} />`
        }
      </div>
    </div>
    ${job.status === "queued" && html`<${Waiting} job=${job} />`}
    ${job.error && html`<${JobError} error=${job.error} role="alert" />`}
    <${Headlines} job=${job} />
    ${isEdited && html`<${EditDialog} job=${job} onClose=${() => setEdited(false)} onSaved=${onChange} />`}
  </header>`;
}

/** Why a job or an attempt has failed, with the end of its log. @param {{error: Record<string, any>, role?: "alert", log?: string}} props */
export function JobError({ error, role, log = "the log" }) {
  const tail = [error.log_tail ?? ""].flat().join("\n");
  return html`<div class="notice red" role=${role}>
    <strong>${error.type}</strong>
    <p>${error.message}</p>
    ${tail && html`<details><summary>End of ${log}</summary><pre tabindex="0">${tail}</pre></details>`}
  </div>`;
}

/** @param {{job: Api.JobView}} props */
function Headlines({ job }) {
  const progress = job.progress ?? {};
  const waits = progress.times?.data_wait;
  /** @type {[string, Content][]} */
  const headlines = [
    ["Progress", html`<${JobProgress} job=${job} />`],
    ["k-NN", known(progress.knn, percent)],
    ["R@1", known(progress.recall_at_1, percent)],
    ["Loss", known(progress.loss, number)],
    ["Images/s", known(progress.images_per_second, number)],
    ["Waiting for images", known(waits, (value) => percent(value, 0))],
    ["Took", job.started_at && took(job)],
    ["Started", job.started_at && html`<${Ago} at=${job.started_at} />`],
    [
      "Data set",
      html`<a href=${link(["datasets", job.dataset.id])}>${job.dataset.name}</a><span class="muted"> v${job.dataset_version}</span>`,
    ],
    ["Method", `${job.resolved.method?.name ?? ""} · ${job.resolved.backbone?.name ?? ""}`],
    [
      "Experiment",
      job.experiment &&
        html`<a href=${link(["experiments", job.experiment.id])}>${job.experiment.variant}</a><span class="muted"> seed ${job.experiment.seed}</span>`,
    ],
    ["Submitted by", job.submitted_by],
    ["Priority", job.priority || null],
  ];
  return html`<${Facts} items=${headlines} large />`;
}

/** @param {number | null | undefined} value @param {(value: number) => string} show */
function known(value, show) {
  return value === null || value === undefined ? null : show(value);
}

/** Why a queued job waits, its place, and when it starts at the latest. @param {{job: Api.JobView}} props */
function Waiting({ job }) {
  const { data } = useResource((signal) => get("/v1/cluster", {}, signal), [job.id], { every: 5 });
  const place = data?.queue.findIndex((each) => each.id === job.id) ?? -1;
  const entry = data?.queue[place];
  if (!data || !entry) return null;
  return html`<div class="notice gray">
    <strong>${place === 0 ? "First in the queue" : `Number ${place + 1} of ${data.queued} in the queue`}</strong>
    ${entry.reason && html`<p>${entry.reason}</p>`}
    ${entry.starts_by && html`<p>Starts by ${moment(entry.starts_by)} (${ago(entry.starts_by)}) at the latest.</p>`}
  </div>`;
}
