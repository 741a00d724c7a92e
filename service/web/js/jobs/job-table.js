import { ago, number, percent } from "../core/format.js";
import { go, link } from "../core/router.js";
import { StatusChip, VerdictChip } from "../ui/values.js";
import { stateOf } from "./actions.js";
import { JobProgress } from "./columns.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor.js";

const HEIGHT = 38;
const CARD_HEIGHT = 86;
/** Rows beyond the edges that are drawn too, so that scrolling shows no gap. */
const SPARE = 8;
const narrow = matchMedia("(max-width: 719px)");

/**
 * @typedef {Api.JobSummary} Job
 * @typedef {import("./columns.js").Column} Column
 * @typedef {{job: Job, top: number, isSelected: boolean, isCurrent: boolean, onToggle: (job: Job) => void}} RowProps
 */
/**
 * The rows of the jobs; only those in sight are in the document, whatever the number of jobs.
 * @param {{list: ReturnType<typeof import("./use-jobs.js").useJobs>, columns: Column[], sort?: string,
 *   onSort: (sort: string | null) => void, selected: Map<string, Job>, onToggle: (job: Job) => void,
 *   onToggleAll: () => void, row: number}} props
 */
export function JobTable({ list, columns, sort, onSort, selected, onToggle, onToggleAll, row }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 800 });
  const [isNarrow, setNarrow] = useState(narrow.matches);
  const height = isNarrow ? CARD_HEIGHT : HEIGHT;
  const { rows } = list;
  const first = Math.max(0, Math.floor(view.top / height) - SPARE);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / height) + SPARE);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    const changed = () => setNarrow(narrow.matches);
    narrow.addEventListener("change", changed);
    return () => {
      observer.disconnect();
      narrow.removeEventListener("change", changed);
    };
  }, []);
  useEffect(() => {
    if (list.hasMore && last >= rows.length - 30) list.loadMore();
  }, [last, rows.length, list.hasMore]);
  useEffect(() => {
    const element = box.current;
    if (row < 0 || !element) return;
    const head = isNarrow ? 0 : HEIGHT;
    if (row * height < element.scrollTop) element.scrollTop = row * height;
    const bottom = (row + 1) * height + head;
    if (bottom > element.scrollTop + element.clientHeight)
      element.scrollTop = bottom - element.clientHeight;
  }, [row]);

  const template = `34px ${columns.map((column) => column.width).join(" ")}`;
  const shown = rows.slice(first, last);
  const rowProps = (/** @type {Job} */ job, /** @type {number} */ index) => ({
    job,
    top: index * height,
    isSelected: selected.has(job.id),
    isCurrent: index === row,
    onToggle,
  });
  return html`<div class="table-box" ref=${box} tabindex="0" role="region" aria-label="List of jobs">
    <div class="table" role="table" aria-label="Jobs" aria-rowcount=${list.hasMore ? -1 : rows.length + 1}>
      ${
        !isNarrow &&
        html`<div role="rowgroup" class="thead">
        <div class="tr" role="row" style=${{ gridTemplateColumns: template }}>
          <span role="columnheader" class="select"
            ><input type="checkbox" aria-label="Select all that are loaded" checked=${selected.size > 0} onChange=${onToggleAll}
          /></span>
          ${columns.map((column) => html`<${Heading} column=${column} sort=${sort} onSort=${onSort} />`)}
        </div>
      </div>`
      }
      <div role="rowgroup" class="tbody" style=${{ height: `${rows.length * height}px` }}>
        ${shown.map((job, offset) =>
          isNarrow
            ? html`<${JobCard} key=${job.id} ...${rowProps(job, first + offset)} />`
            : html`<${Row} key=${job.id} ...${rowProps(job, first + offset)} columns=${columns} template=${template} number=${first + offset + 2} />`,
        )}
      </div>
    </div>
    <p class="table-foot muted" role="status">${list.hasMore ? `${rows.length.toLocaleString("en")} loaded, more as you scroll` : `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "job" : "jobs"}`}</p>
  </div>`;
}

/** @param {RowProps & {columns: Column[], template: string, number: number}} props */
function Row({ job, columns, template, top, number, isSelected, isCurrent, onToggle }) {
  const open = (/** @type {MouseEvent} */ { target }) => {
    const isOnControl = target instanceof Element && target.closest("a, button, input");
    if (!isOnControl && !String(getSelection())) go(["jobs", job.id]);
  };
  return html`<div
    class=${`tr ${isSelected ? "selected" : ""} ${isCurrent ? "current" : ""}`}
    role="row"
    aria-rowindex=${number}
    style=${{ gridTemplateColumns: template, transform: `translateY(${top}px)` }}
    onClick=${open}
  >
    <span role="cell" class="select"
      ><input type="checkbox" aria-label=${`Select ${job.name}`} checked=${isSelected} onChange=${() => onToggle(job)}
    /></span>
    ${columns.map((column) => html`<span role="cell" class=${column.right ? "right" : ""}>${column.cell(job)}</span>`)}
  </div>`;
}

/** @param {{column: Column, sort?: string, onSort: (sort: string | null) => void}} props */
function Heading({ column, sort, onSort }) {
  const kind = column.right ? "right" : "";
  if (!column.sort) return html`<span role="columnheader" class=${kind}>${column.title}</span>`;
  const isDown = sort === `-${column.sort}`;
  const isUp = sort === column.sort;
  // Largest first, then smallest first, then the newest jobs first again.
  const next = isDown ? column.sort : isUp ? null : `-${column.sort}`;
  return html`<span role="columnheader" class=${kind} aria-sort=${isDown ? "descending" : isUp ? "ascending" : "none"}>
    <button type="button" class="sort" onClick=${() => onSort(next)}>${column.title}<span aria-hidden="true">${isDown ? " ↓" : isUp ? " ↑" : ""}</span></button>
  </span>`;
}

/** A job in the list of a narrow screen. @param {RowProps} props */
function JobCard({ job, top, isSelected, isCurrent, onToggle }) {
  const progress = job.progress ?? {};
  const figures = [
    progress.knn !== undefined && progress.knn !== null && `k-NN ${percent(progress.knn)}`,
    progress.loss !== undefined && progress.loss !== null && `loss ${number(progress.loss)}`,
  ].filter(Boolean);
  return html`<div
    class=${`job-card ${isSelected ? "selected" : ""} ${isCurrent ? "current" : ""}`}
    role="row"
    style=${{ transform: `translateY(${top}px)` }}
  >
    <span role="cell" class="select">
      <input type="checkbox" aria-label=${`Select ${job.name}`} checked=${isSelected} onChange=${() => onToggle(job)} />
    </span>
    <span role="cell" class="job-card-text">
      <span class="line"><a class="name" href=${link(["jobs", job.id])}>${job.name}</a><${StatusChip} status=${stateOf(job)} /></span>
      <span class="line muted"><span>${job.method} · ${job.dataset.name}</span><span>${ago(job.created_at)}</span></span>
      <span class="line"><${JobProgress} job=${job} /><span>${figures.join(" · ")}</span><${VerdictChip} verdict=${job.verdict} /></span>
    </span>
  </div>`;
}
