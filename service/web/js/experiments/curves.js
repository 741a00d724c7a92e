import { get, useResource } from "../core/api.js";
import { label } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { chooseRange, CurveToolbar, Panel, viewOf } from "../charts/panel.js";
import { html, useMemo } from "../vendor.js";

const METRICS = ["knn_top1", "recall_at_1", "effective_rank", "embedding_rank"];
const POINTS = 400;

/** @typedef {Api.VariantView & {color: string}} Variant */
/**
 * The mean of each variant over its seeds, and the range of these as a band.
 * @param {{experiment: Api.ExperimentView, variants: Variant[], query: URLSearchParams}} props
 */
export function Curves({ experiment, variants, query }) {
  const view = { ...viewOf(query), time: false };
  // Losses of different methods cannot be compared, nor sums with different regularizers.
  const method = experiment.spec.method?.name ?? "simclr";
  const methods = new Set(variants.map(({ changes }) => changes.method?.name ?? method));
  const losses = methods.size === 1 ? [`loss_${[...methods][0]}`] : [];
  const first = experiment.metric ? [experiment.metric] : [];
  const metrics = [...new Set([...first, ...METRICS, ...losses])];
  const { data } = useResource(
    (signal) =>
      Promise.all(
        metrics.map((metric) =>
          get(`/v1/experiments/${experiment.id}/curves`, { metric, max_points: POINTS }, signal),
        ),
      ),
    [experiment.id],
    { every: experiment.done ? 0 : 15 },
  );
  const panels = useMemo(
    () =>
      (data ?? []).map((curves) => panelOf(curves, variants)).filter((panel) => panel.x.length > 0),
    [data],
  );
  useKeys({ z: () => chooseRange(null) });
  if (!panels.length) return null;
  return html`<${CurveToolbar} view=${view} onlySteps><span class="muted small">Mean of the seeds, and their range</span><//>
    <div class="panels">${panels.map((panel) => html`<${Panel} key=${panel.id} ...${panel} view=${view} sync=${experiment.id} />`)}</div>`;
}

/** @param {Api.Curves} curves @param {Variant[]} variants */
function panelOf({ metric, variants: curves }, variants) {
  const x = [...new Set(curves.flatMap((curve) => curve.step))].sort((one, other) => one - other);
  const lines = curves.map((curve) => {
    const places = new Map(curve.step.map((step, index) => [step, index]));
    const [values, low, high] = [curve.mean, curve.min, curve.max].map((column) =>
      x.map((step) => column[places.get(step) ?? -1] ?? null),
    );
    const color = variants.find((each) => each.name === curve.variant)?.color ?? "--muted-line";
    return { label: curve.variant, color, points: curve.step.length < 40, values, low, high };
  });
  return { id: metric, title: label(metric), x, lines };
}
