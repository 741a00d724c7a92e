import { count } from "../core/format.js";
import { Icon } from "../ui/controls.js";
import { Thumbnail } from "../ui/thumbnail.js";
import { html } from "../vendor.js";
import { when } from "./pictures-view.js";

/**
 * @typedef {{key: string, label: string | null, held_out: boolean}} Image
 * @typedef {{step: number, epoch: number, neighbors: number[][], distances: number[][]}} Evaluation
 * @typedef {{evaluations: Evaluation[], queries: number[], images: Image[], thumbnails: {columns: number},
 *   searched: {held_out: number, train: number, of_train: number}}} Data of `neighbours.json`
 * @typedef {import("../ui/thumbnail.js").Sheet} Sheet
 */
/**
 * The nearest images of held-out ones, those at the start beside those of the chosen evaluation.
 * @param {{data: Data, shown: Evaluation, sheet: Sheet}} props
 */
export function Neighbors({ data, shown, sheet }) {
  const [start] = data.evaluations;
  const columns = shown === start ? [start] : [start, shown];
  const { held_out, train, of_train } = data.searched;
  const trained = train < of_train ? `${count(train)} of ${count(of_train)}` : count(train);
  const isLabeled = data.queries.some((query) => data.images[query].label !== null);
  return html`<section class="card">
    <h2>Nearest neighbors of held-out images</h2>
    <p class="muted small">
      Among ${count(held_out)} held-out and ${trained} training images, nearest first, with their cosine distances.
      ${isLabeled && html` <span class="right-mark"><${Icon} name="check" /></span> of the same class.`}
    </p>
    <ul class="neighbors">
      ${data.queries.map(
        (query, row) => html`<li>
          <div class="query"><${Thumbnail} sheet=${sheet} index=${query} name=${nameOf(data.images[query])} /><span class="muted small">${data.images[query].label ?? ""}</span></div>
          ${columns.map((evaluation) => html`<${Found} data=${data} sheet=${sheet} query=${query} evaluation=${evaluation} row=${row} isLabeled=${isLabeled} />`)}
        </li>`,
      )}
    </ul>
  </section>`;
}

/** @param {{data: Data, sheet: Sheet, query: number, evaluation: Evaluation, row: number, isLabeled: boolean}} props */
function Found({ data, sheet, query, evaluation, row, isLabeled }) {
  const { label } = data.images[query];
  const found = evaluation.neighbors[row].map((index) => ({ index, image: data.images[index] }));
  // The training images, or those held out, may have no labels.
  const labeled = found.filter(({ image }) => label !== null && image.label !== null);
  const right = labeled.filter(({ image }) => image.label === label).length;
  return html`<div class="found">
    <span class="small muted">${when(evaluation)}${isLabeled ? ` · ${right} of ${labeled.length}${labeled.length < found.length ? " with a label" : ""}` : ""}</span>
    <ol>
      ${found.map(({ index, image }, place) => {
        const isRight = label !== null && image.label === label;
        return html`<li class=${isRight ? "is-right" : ""}>
          <${Thumbnail} sheet=${sheet} index=${index} name=${`${nameOf(image)}${isRight ? ", same class" : ""}`} />
          ${isRight && html`<span class="right-mark"><${Icon} name="check" /></span>`}
          <span class="distance">${distance(evaluation.distances[row][place])}</span>
        </li>`;
      })}
    </ol>
  </div>`;
}

/** Two decimals, or more where it is small, as in an untrained network. */
const distance = (/** @type {number} */ value) =>
  value.toFixed(value >= 0.01 || value < 5e-5 ? 2 : 4);

/** @param {Image} image */
function nameOf({ key, label, held_out }) {
  return `${key}${label === null || key.startsWith(`${label}/`) ? "" : `, ${label}`}, ${held_out ? "held out" : "training image"}`;
}
