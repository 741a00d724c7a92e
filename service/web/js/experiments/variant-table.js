import { get, useResource } from "../core/api.js";
import { figure, isShare, label, number } from "../core/format.js";
import { setQuery } from "../core/router.js";
import { Icon, Select } from "../ui/controls.js";
import { Table } from "../ui/values.js";
import { html } from "../vendor.js";

/** @type {Record<string, string>} */
const TONES = { better: "green", worse: "red", unstable: "amber" };

/** A value of a metric. @param {string} metric @param {number | null | undefined} value */
export const valueText = (metric, value) => figure(metric, value, 2);

/** A difference, in percentage points of a share. @param {string} metric @param {number} value */
const signed = (metric, value) =>
  `${value > 0 ? "+" : ""}${isShare(metric) ? (value * 100).toFixed(2) : number(value)}`;

/**
 * Mean, spread and paired differences from the baseline, of the metric that is chosen.
 * @param {{experiment: Api.ExperimentView, variants: import("./curves.js").Variant[], query: URLSearchParams}} props
 */
export function VariantTable({ experiment, variants, query }) {
  const { id, statuses, results } = experiment;
  const { data } = useResource(
    (signal) => get(`/v1/experiments/${id}/results`, {}, signal),
    [id, statuses.succeeded],
  );
  const metrics = data?.metrics ?? results.metrics;
  const shown =
    metrics.find((each) => each.metric === (query.get("metric") ?? results.metric)) ?? metrics[0];
  if (!shown) return null;
  const { metric } = shown;
  const decides = metric === results.metric;
  const interval = (/** @type {number[] | null | undefined} */ pair) =>
    pair ? `${signed(metric, pair[0])} to ${signed(metric, pair[1])}` : "–";
  const file = (/** @type {string} */ format, /** @type {string} */ title) =>
    html`<a class="button" href=${`v1/experiments/${id}/results?format=${format}`} download=${`${experiment.name}.${format === "csv" ? "csv" : "md"}`}><${Icon} name="download" /><span>${title}</span></a>`;
  return html`<section class="card">
    <header class="card-head">
      <h2>Variants</h2>
      <span class="actions">
        <${Select} label="Metric" options=${metrics.map((each) => [each.metric, `${label(each.metric)}${each.metric === results.metric ? ", decides" : ""}`])} value=${metric} onChange=${(chosen) => setQuery({ metric: chosen })} />
        ${file("csv", "CSV")} ${file("markdown", "Markdown")}
      </span>
    </header>
    <${Table} label="Variants" head=${html`<th>Variant</th><th class="right">Seeds</th><th class="right">Mean</th><th class="right">Std</th><th class="right">Min</th><th class="right">Max</th><th class="right" title="With the same seed">Minus ${data?.baseline ?? results.baseline}${isShare(metric) ? ", points" : ""}</th><th class="right">95 %, t interval</th><th class="right" title="95 % bootstrap interval: too narrow with few seeds; the t interval decides">Range of resampled means</th><th>Verdict${results.metric && !decides ? html` <span class="muted">(${label(results.metric)} decides)</span>` : ""}</th>`}>
      ${shown.variants.map(({ variant, summary, difference, verdict }) => {
        const color = variants.find((each) => each.name === variant)?.color;
        const cell = (/** @type {number | null | undefined} */ value) =>
          html`<td class="right">${valueText(metric, value)}</td>`;
        return html`<tr>
          <th scope="row"><span class="mark" style=${{ "--mark": `var(${color})` }}></span>${variant}</th>
          <td class="right">${summary?.n ?? 0}</td>
          ${cell(summary?.mean)}${cell(summary?.std)}${cell(summary?.min)}${cell(summary?.max)}
          <td class="right">${difference ? signed(metric, difference.mean) : "–"}</td>
          <td class="right">${interval(difference?.t_interval)}</td>
          <td class="right">${interval(difference?.bootstrap_interval)}</td>
          <td>${verdict && html`<span class=${`chip plain ${(decides && TONES[verdict]) || "gray"}`}>${verdict.replaceAll("_", " ")}</span>`}</td>
        </tr>`;
      })}
    <//>
  </section>`;
}
