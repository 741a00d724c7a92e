import { count } from "../core/format.js";
import { html } from "../vendor.js";

const MOST = 200;
// The end of a reason that is of one row of a list.
const LINE = / \(line \d+ of the list\)$/;

/** @typedef {NonNullable<Api.DatasetView["report"]>} Found */
/**
 * What the ingest has found: a contact sheet, warnings, classes, skipped files by reason, and duplicates.
 * @param {{dataset: Api.DatasetView, report: Found}} props
 */
export function Report({ dataset, report }) {
  return html`${(report.warnings ?? []).map((/** @type {string} */ text) => html`<div class="notice amber"><p>${text}.</p></div>`)}
    ${(report.unused ?? []).map((/** @type {string} */ text) => html`<div class="notice gray"><p>${text}</p></div>`)}
    <div class="report">
      <section class="card">
        <h2>Contact sheet</h2>
        <a href=${sheet(dataset)} target="_blank" rel="noopener"><img class="sheet" src=${sheet(dataset)} alt=${`Thumbnails of images of ${dataset.name}`} loading="lazy" onError=${hide} /></a>
      </section>
      <${Skipped} report=${report} />
      <${Classes} names=${report.class_names ?? []} total=${dataset.facts?.num_classes} />
      <${Duplicates} duplicates=${report.duplicates} />
    </div>`;
}

const sheet = (/** @type {Api.DatasetView} */ dataset) =>
  `v1/datasets/${dataset.id}/contact-sheet?v=${dataset.version}`;

/** @param {ChangeOf<HTMLImageElement>} event */
function hide(event) {
  event.currentTarget.replaceWith("There is no contact sheet of this data set.");
}

/** @param {{report: Found}} props */
function Skipped({ report }) {
  /** @type {Map<string, string[]>} */
  const reasons = new Map();
  for (const { path, reason } of report.skipped ?? []) {
    const [line] = LINE.exec(reason) ?? [""];
    const why = reason.slice(0, reason.length - line.length);
    reasons.set(why, [...(reasons.get(why) ?? []), path + line]);
  }
  const sorted = [...reasons].sort((one, other) => other[1].length - one[1].length);
  return html`<section class="card">
    <h2>Skipped files <span class="muted">${count(report.num_skipped ?? 0)}</span></h2>
    ${sorted.length === 0 && html`<p class="muted">None: every image can be used.</p>`}
    ${sorted.map(
      ([reason, paths]) => html`<details>
        <summary>${reason} <span class="badge">${count(paths.length)}</span></summary>
        <ul class="paths" tabindex="0">${paths.slice(0, MOST).map((path) => html`<li><code>${path}</code></li>`)}${paths.length > MOST && html`<li class="muted">and ${count(paths.length - MOST)} more</li>`}</ul>
      </details>`,
    )}
  </section>`;
}

/** @param {{names: string[], total?: number | null}} props */
function Classes({ names, total }) {
  if (names.length === 0) return null;
  return html`<section class="card">
    <h2>Classes <span class="muted">${count(total ?? names.length)}</span></h2>
    <p class="classes" tabindex="0">${names.slice(0, MOST).map((name) => html`<span class="tag small">${name}</span> `)}${names.length > MOST && html`<span class="muted">and more</span>`}</p>
  </section>`;
}

/**
 * @param {{duplicates?: Record<string, {groups: number, superfluous: number, checked: number, examples: string[][]}>}} props
 */
function Duplicates({ duplicates }) {
  const kinds = Object.entries(duplicates ?? {}).filter(([, found]) => found?.groups > 0);
  if (!kinds.length) return null;
  return html`<section class="card">
    <h2>Duplicates</h2>
    ${kinds.map(
      ([kind, found]) => html`<details>
        <summary>${kind === "equal" ? "Equal images" : "Similar images"} <span class="badge">${count(found.groups)}</span> <span class="muted">${found.groups === 1 ? "group" : "groups"}, ${count(found.superfluous)} more than needed, of ${count(found.checked)} compared</span></summary>
        <ul class="paths" tabindex="0">${found.examples.map((paths) => html`<li>${paths.map((path, index) => html`${index > 0 && html` <span class="muted">${kind === "equal" ? "=" : "≈"}</span> `}<code>${path}</code>`)}</li>`)}</ul>
      </details>`,
    )}
  </section>`;
}
