import { get, useResource } from "../core/api.js";
import { label } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { chooseRange, CurveToolbar, Panel, viewOf } from "../charts/panel.js";
import { meanOf } from "./groups.js";
import { Loaded } from "../ui/state.js";
import { html, useMemo } from "../vendor.js";

/** What is compared: metrics of training, and of evaluations. */
const TRAINING = [
  "loss",
  "embedding_rank",
  "embedding_norm",
  "embedding_distance_std",
  "lr",
  "gradient_norm",
  "images_per_second",
];
const EVALUATED = [
  "knn_top1",
  "recall_at_1",
  "instance_recall_at_1",
  "linear_top1",
  "nmi",
  "effective_rank",
];
/** About one step for each two pixels of a chart. */
const POINTS = 500;

/** @typedef {import("./groups.js").Group} Group */
/**
 * A chart for each metric, with a line for each job, or the mean and range of each group.
 * @param {{groups: Group[], live: boolean, query: URLSearchParams}} props
 */
export function Overlay({ groups, live, query }) {
  const view = viewOf(query);
  const range = view.time ? null : view.range;
  const resource = useResource((signal) => load(groups, range, signal), [range?.min, range?.max], {
    every: live ? 8 : 0,
  });
  const { data } = resource;
  const panels = useMemo(
    () =>
      data && [...EVALUATED, ...TRAINING].flatMap((name) => panel(name, groups, data, view.time)),
    [data, view.time],
  );
  useKeys({ z: () => chooseRange(null) });
  return html`<${Loaded} resource=${resource} what="curves">
    ${() => html`<${CurveToolbar} view=${view} />
      <div class="panels">${panels?.map((panel) => html`<${Panel} key=${panel.id} ...${panel} view=${view} sync="compare" />`)}</div>`}
  <//>`;
}

/** @param {Group[]} groups @param {import("../charts/chart.js").Range | null} range @param {AbortSignal} signal */
async function load(groups, range, signal) {
  const steps = range ? { from_step: Math.floor(range.min), to_step: Math.ceil(range.max) } : {};
  const job = groups.flatMap((group) => group.jobs.map((each) => each.id));
  const query = { job, name: [...EVALUATED, ...TRAINING], max_points: POINTS, ...steps };
  const { data } = await get("/v1/metrics", query, signal);
  return new Map(data.map((columns) => [columns.job_id, columns]));
}

/**
 * A panel with a line for each group over one x axis; none if no job has the metric.
 * @param {string} name @param {Group[]} groups @param {Map<string, Api.JobMetricColumns>} data @param {boolean} isTime
 */
function panel(name, groups, data, isTime) {
  const tables = groups.map((group) =>
    meanOf(group.jobs.map((job) => pairs(data.get(job.id), name, isTime))),
  );
  if (tables.every((table) => table.length === 0)) return [];
  const x = [...new Set(tables.flatMap((table) => table.map(([at]) => at)))].sort(
    (one, other) => one - other,
  );
  const lines = tables.map((table, index) => {
    const { name: title, color, jobs } = groups[index];
    const rows = new Map(table.map(([at, ...figures]) => [at, figures]));
    const [values, low, high] = [0, 1, 2].map((part) =>
      x.map((at) => rows.get(at)?.[part] ?? null),
    );
    const band = jobs.length > 1 ? { low, high } : {};
    return { label: title, color, points: EVALUATED.includes(name), values, ...band };
  });
  return [{ id: name, title: label(name), x, lines }];
}

/** @param {Api.MetricColumns | undefined} columns @param {string} name @param {boolean} isTime @returns {[number, number][]} */
function pairs(columns, name, isTime) {
  if (!columns) return [];
  const { step, time, values } = columns;
  const x = isTime ? time.map((each) => each - time[0]) : step;
  return x.flatMap((at, index) => {
    const value = values[name]?.[index];
    return typeof value === "number" ? [[at, value]] : [];
  });
}
