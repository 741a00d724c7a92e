import { count, number, percent } from "../core/format.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";
import { Table } from "../ui/values.js";
import { html, useEffect, useRef } from "../vendor.js";
import { indexAt, when } from "./pictures-view.js";

const ROWS = 96;

/**
 * @typedef {{step: number, epoch: number, mean: number, low: number, high: number, counts: number[]}} Histogram
 * @typedef {{step: number, epoch: number, by: string, groups: number, eta_squared: number, omega_squared: number, rows: [string, number, number, number][]}} Groups
 * @typedef {{distances: {between: string, evaluations: Histogram[]}, norms: {evaluations: Histogram[]}, norms_by_group: Groups[]}} Data
 */
/** How distances and norms of the embeddings are distributed at each evaluation. @param {{data: Data, step: number}} props */
export function Histograms({ data, step }) {
  const { distances, norms, norms_by_group: groups } = data;
  const between =
    distances.between === "classes" ? "images of different classes" : "different images";
  return html`<div class="report">
    <${HeatMap} title="Distances of embeddings" about=${`Between ${between}, after normalization, from 0 to 2: what DAR makes equal`} rows=${distances.evaluations} step=${step} />
    <${HeatMap} title="Norms of embeddings" about="Of held-out images, before normalization: what SEC makes equal" rows=${norms.evaluations} step=${step} />
    ${groups.length > 0 && html`<${NormsByGroup} shown=${groups[indexAt(groups, step)]} />`}
  </div>`;
}

/** Mean and spread of the norms by group or class, those with the smallest and largest means. @param {{shown: Groups}} props */
function NormsByGroup({ shown }) {
  const { by, groups, eta_squared, omega_squared, rows } = shown;
  const title = `Norms of embeddings by ${by}`;
  return html`<section class="card">
    <h2>${title}</h2>
    <p class="muted small">The ${by} explains ${percent(eta_squared, 0)} of the variance, ${percent(Math.max(0, omega_squared), 0)} beyond chance.${rows.length < groups && ` Of ${count(groups)}, those with the smallest and the largest means.`}</p>
    <${Table} label=${title} head=${html`<th>${by}</th><th class="right">Images</th><th class="right">Mean</th><th class="right">Standard deviation</th>`}>
      ${rows.map(([name, images, mean, std]) => html`<tr><td>${name}</td><td class="right">${count(images)}</td><td class="right">${number(mean)}</td><td class="right">${number(std)}</td></tr>`)}
    <//>
  </section>`;
}

/**
 * A column for each evaluation, darker where more values are, and a line through the means.
 * @param {{title: string, about: string, rows: Histogram[], step: number}} props
 */
function HeatMap({ title, about, rows, step }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const shade = useStore(theme);
  const low = Math.min(...rows.map((row) => row.low));
  const high = Math.max(...rows.map((row) => row.high));
  useEffect(() => {
    if (canvas.current) draw(canvas.current, rows, low, high, step);
  }, [rows, step, shade]);
  const [first, last] = [rows[0], rows.at(-1)];
  if (!first || !last) return null;
  const summary = `${title}: mean ${number(first.mean)} at the start, ${number(last.mean)} at ${when(last).toLowerCase()}`;
  return html`<section class="card">
    <h2>${title}</h2>
    <p class="muted small">${about}. The line is their mean.</p>
    <div class="heat">
      <span class="muted small">${number(high)}</span>
      <canvas ref=${canvas} role="img" aria-label=${summary}></canvas>
      <span class="muted small bottom">${number(low)}</span>
      <div class="ends muted small"><span>${when(first)} · mean ${number(first.mean)}</span><span>${when(last)} · mean ${number(last.mean)}</span></div>
    </div>
  </section>`;
}

/** @param {HTMLCanvasElement} canvas @param {Histogram[]} rows @param {number} low @param {number} high @param {number} step */
function draw(canvas, rows, low, high, step) {
  const style = getComputedStyle(canvas);
  const context = canvas.getContext("2d");
  if (!context) return;
  [canvas.width, canvas.height] = [
    canvas.clientWidth * devicePixelRatio,
    ROWS * 2 * devicePixelRatio,
  ];
  const [wide, tall] = [canvas.width / rows.length, 2 * devicePixelRatio];
  const span = high - low || 1;
  const height = ROWS * tall;
  const at = (/** @type {number} */ value) => height * (1 - (value - low) / span);
  context.fillStyle = style.getPropertyValue("--c1");
  rows.forEach((row, column) => {
    const densities = Array.from({ length: ROWS }, (_, place) =>
      density(row, low + (place / ROWS) * span, span / ROWS),
    );
    const most = Math.max(...densities) || 1;
    densities.forEach((value, place) => {
      context.globalAlpha = value / most;
      context.fillRect(column * wide, height - (place + 1) * tall, wide, tall);
    });
  });
  context.globalAlpha = 1;
  context.strokeStyle = style.getPropertyValue("--c2");
  context.lineWidth = 2 * devicePixelRatio;
  context.beginPath();
  for (const [column, row] of rows.entries()) context.lineTo((column + 0.5) * wide, at(row.mean));
  context.stroke();
  const chosen = indexAt(rows, step);
  context.strokeStyle = style.getPropertyValue("--text");
  context.lineWidth = 1;
  context.strokeRect(chosen * wide + 0.5, 0.5, wide - 1, height - 1);
}

/**
 * The count of a row between `from` and `from + width`, as if each of its bins were filled evenly.
 * @param {Histogram} row @param {number} from @param {number} width
 */
function density({ low, high, counts }, from, width) {
  const bin = (high - low) / counts.length;
  if (!(bin > 0)) return 0;
  let sum = 0;
  for (let index = Math.max(0, Math.floor((from - low) / bin)); index < counts.length; index++) {
    const start = low + index * bin;
    if (start >= from + width) break;
    sum +=
      (counts[index] * Math.max(0, Math.min(start + bin, from + width) - Math.max(start, from))) /
      bin;
  }
  return sum;
}
