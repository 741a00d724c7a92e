import { count, duration, number, percent } from "../core/format.js";
import { link } from "../core/router.js";
import { read, write } from "../core/store.js";
import { Menu } from "../ui/controls.js";
import { Ago, Meter, StatusChip, VerdictChip } from "../ui/values.js";
import { isOne, stateOf } from "./actions.js";
import { html, useState } from "../vendor.js";

/**
 * @typedef {{id: string, title: string, width: string, sort?: string, right?: boolean, hidden?: boolean,
 *   cell: (job: Api.JobSummary) => Content}} Column
 *   `sort` is the field by which the server orders
 */
/**
 * A column of figures.
 * @param {string} id @param {string} title @param {string} width @param {Column["cell"]} cell
 * @param {Partial<Column>} [more]
 * @returns {Column}
 */
const figures = (id, title, width, cell, more) => ({
  id,
  title,
  width,
  right: true,
  cell,
  ...more,
});
const HIDDEN = { hidden: true };

/**
 * Columns of the table of jobs.
 * @type {Column[]}
 */
const COLUMNS = [
  {
    id: "name",
    title: "Name",
    width: "minmax(180px, 2.2fr)",
    sort: "name",
    cell: (job) => html`<${Name} job=${job} />`,
  },
  {
    id: "status",
    title: "State",
    width: "104px",
    sort: "status",
    cell: (job) => html`<${StatusChip} status=${stateOf(job)} />`,
  },
  {
    id: "progress",
    title: "Progress",
    width: "minmax(150px, 1fr)",
    cell: (job) => html`<${JobProgress} job=${job} />`,
  },
  figures("knn", "k-NN", "72px", (job) => share(job.progress?.knn), { sort: "best.knn_top1" }),
  figures("recall", "R@1", "72px", (job) => share(job.progress?.recall_at_1), {
    sort: "best.recall_at_1",
  }),
  figures("loss", "Loss", "72px", (job) => number(job.progress?.loss)),
  {
    id: "verdict",
    title: "Verdict",
    width: "108px",
    cell: (job) => html`<${VerdictChip} verdict=${job.verdict} />`,
  },
  {
    id: "method",
    title: "Method",
    width: "minmax(110px, .8fr)",
    sort: "method",
    cell: (job) => html`<${Method} job=${job} />`,
  },
  {
    id: "dataset",
    title: "Data set",
    width: "minmax(90px, .8fr)",
    cell: (job) => job.dataset.name,
  },
  figures("created", "Created", "96px", (job) => html`<${Ago} at=${job.created_at} />`, {
    sort: "created_at",
  }),
  {
    id: "experiment",
    title: "Experiment",
    width: "minmax(110px, .8fr)",
    hidden: true,
    cell: (job) => html`<${Place} place=${job.experiment} />`,
  },
  {
    id: "by",
    title: "By",
    width: "minmax(80px, .6fr)",
    hidden: true,
    cell: (job) => job.submitted_by ?? html`<span class="muted">–</span>`,
  },
  figures("took", "Took", "92px", (job) => took(job), HIDDEN),
  figures("speed", "Images/s", "80px", (job) => number(job.progress?.images_per_second), HIDDEN),
  figures("priority", "Priority", "72px", (job) => job.priority, { ...HIDDEN, sort: "priority" }),
  figures("restarts", "Restarts", "76px", (job) => count(job.restarts), HIDDEN),
  {
    id: "id",
    title: "Id",
    width: "220px",
    hidden: true,
    cell: (job) => html`<code>${job.id}</code>`,
  },
];

const share = (/** @type {number | null | undefined} */ value) =>
  value === null || value === undefined ? html`<span class="muted">–</span>` : percent(value);

/** How long a job has run, or ran. @param {AnyJob} job */
export function took(job) {
  if (!job.started_at) return "–";
  return duration(
    (Date.parse(job.finished_at ?? new Date().toISOString()) - Date.parse(job.started_at)) / 1000,
  );
}

/** @param {{job: AnyJob}} props */
function Name({ job }) {
  const tags = Object.entries(job.tags);
  return html`<a class="name" href=${link(["jobs", job.id])}>${job.name}</a>
    ${tags.slice(0, 3).map(([key, value]) => html`<span class="tag small" title=${`${key}: ${value}`}>${value}</span>`)}
    ${tags.length > 3 && html`<span class="muted small">+${tags.length - 3}</span>`}`;
}

/** @param {{place: AnyJob["experiment"]}} props */
function Place({ place }) {
  if (!place) return html`<span class="muted">–</span>`;
  return html`<a href=${link(["experiments", place.id])}>${place.variant}</a> <span class="muted">seed ${place.seed}</span>`;
}

/** @param {{job: Api.JobSummary}} props */
function Method({ job }) {
  return html`<span title=${`${job.method} · ${job.backbone}`}>${job.method} <span class="muted">${job.backbone}</span></span>`;
}

/** @type {Api.JobStatus[]} */
const UNFINISHED = ["running", "starting", "pausing", "cancelling", "retry_wait", "paused"];

/** How far a job is, and how long it will take. @param {{job: AnyJob}} props */
export function JobProgress({ job }) {
  const progress = job.progress ?? {};
  const text = progressText(progress);
  if (!isOne(UNFINISHED, job.status))
    return html`<span class="muted">${job.status === "queued" ? "" : text}</span>`;
  const value = progress.total_steps ? progress.step / progress.total_steps : 0;
  const left =
    job.status === "running" && progress.eta_seconds ? duration(progress.eta_seconds) : "";
  return html`<span class="progress">
    <${Meter} value=${value} label=${`Progress of ${job.name}`} tone=${job.status === "paused" ? "amber" : ""} />
    <span class="progress-text"><span>${text}</span><span class="muted" title="Estimated time left">${left}</span></span>
  </span>`;
}

/** @param {Record<string, number>} progress */
function progressText({ epoch, epochs, step, images_read, images_total }) {
  if (!step && images_total) return `reading ${percent(images_read / images_total, 0)}`;
  if (epochs) return `${Number((epoch ?? 0).toFixed(1))} / ${epochs} ep.`;
  return step ? `step ${count(step)}` : "";
}

const KEY = "dasl-columns";

/** The columns that this person has chosen; the name always is one. */
export function useColumns() {
  const [ids, setIds] = useState(saved);
  return {
    shown: COLUMNS.filter((column) => column.id === "name" || ids.includes(column.id)),
    toggle(/** @type {string} */ id) {
      const next = ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id];
      write(KEY, next.join(","));
      setIds(next);
    },
  };
}

function saved() {
  return (
    read(KEY)?.split(",") ?? COLUMNS.filter((column) => !column.hidden).map((column) => column.id)
  );
}

/** A menu of all columns. @param {{columns: ReturnType<typeof useColumns>}} props */
export function ColumnChoice({ columns }) {
  const shown = new Set(columns.shown.map((column) => column.id));
  return html`<${Menu} label="Columns" icon="columns">
    ${() =>
      COLUMNS.filter((column) => column.id !== "name").map(
        (column) => html`<label class="menu-item check">
        <input type="checkbox" checked=${shown.has(column.id)} onChange=${() => columns.toggle(column.id)} />${column.title}
      </label>`,
      )}
  <//>`;
}
