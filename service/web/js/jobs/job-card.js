import { ago, number, percent } from "../core/format.js";
import { link } from "../core/router.js";
import { StatusChip, VerdictChip } from "../ui/chip.js";
import { html } from "../vendor.js";
import { stateOf } from "./actions.js";
import { JobProgress } from "./columns.js";

/** A job in the list of a narrow screen. @param {import("./job-table.js").RowProps} props */
export function JobCard({ job, top, isSelected, isCurrent, onToggle }) {
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
