import { get } from "../core/api.js";
import { label } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { attempt } from "../core/toasts.js";
import { COLORS } from "../core/theme.js";
import { saveCsv } from "../charts/csv.js";
import { chooseRange, CurveToolbar, Panel, viewOf } from "../charts/panel.js";
import { panelsOf } from "../charts/panels.js";
import { useSeries } from "../charts/series.js";
import { isFinal } from "../jobs/actions.js";
import { Empty, Loaded } from "../ui/state.js";
import { html, useMemo } from "../vendor.js";
import { measured, useJobList } from "./job-list.js";

const BASELINES = { raw: "raw pixels", untrained: "untrained", start: "start weights" };

/** @typedef {{x: number[], lines: import("../charts/panel.js").Curve[]}} Drawn */
/** The curves of a job, which share zoom and cursor. @param {JobProps} props */
export function CurvesView({ job, query }) {
  const view = viewOf(query);
  const series = useSeries(job.id, isFinal(job), view.time ? null : view.range);
  const columns = series.data;
  const evaluations = useJobList(job, `/v1/jobs/${job.id}/evaluations`, "evaluation");
  const panels = useMemo(
    () => (columns ? drawn(columns, evaluations.data ?? [], view.time) : []),
    [columns, evaluations.data, view.time],
  );
  useKeys({ z: () => chooseRange(null) });
  const curves = html`<${CurveToolbar} view=${view} onSave=${() => attempt(() => save(job))}>
      <span class="muted small wide-only">Drag to zoom, double-click to reset</span>
    <//>
    <div class="panels">
      ${panels.map((panel) => html`<${Panel} key=${panel.id} ...${panel} view=${view} sync=${job.id} />`)}
    </div>`;
  return html`<${Loaded} resource=${series} what="curves">
    ${() => (panels.length ? curves : html`<${Nothing} job=${job} />`)}
  <//>`;
}

/** @param {Api.MetricColumns} columns @param {Api.EvaluationView[]} evaluations @param {boolean} isTime */
function drawn(columns, evaluations, isTime) {
  const trained = evaluations.filter(
    (each) => each.subject === "backbone" || each.subject === "embedding",
  );
  const start = columns.time[0] ?? 0;
  const steps = isTime ? columns.time.map((time) => time - start) : columns.step;
  return panelsOf(Object.keys(columns.values), measured(trained))
    .map(({ id, title, of, names }) => {
      if (of === "metrics") {
        const lines = names.map((name, index) => ({
          label: label(name),
          color: COLORS[index % COLORS.length],
          values: columns.values[name],
        }));
        return { id, title, x: steps, lines };
      }
      return {
        id,
        title,
        ...evaluated(names, trained, evaluations, (each) =>
          isTime ? Date.parse(each.created_at) / 1000 - start : each.step,
        ),
      };
    })
    .filter((panel) => panel.x.length > 0);
}

/**
 * Lines of evaluated metrics, and of what was measured before training as dashes across.
 * @param {string[]} names @param {Api.EvaluationView[]} trained @param {Api.EvaluationView[]} evaluations
 * @param {(evaluation: Api.EvaluationView) => number} at
 * @returns {Drawn}
 */
function evaluated(names, trained, evaluations, at) {
  const subjects = new Set(trained.map((each) => each.subject));
  const x = [...new Set(trained.map(at))].sort((one, other) => one - other);
  /** @type {Drawn["lines"]} */
  const lines = names.flatMap((name, index) =>
    [...subjects].map((subject) => {
      const values = new Map(
        trained
          .filter((each) => each.subject === subject)
          .map((each) => [at(each), each.metrics[name] ?? null]),
      );
      return {
        label: subjects.size > 1 ? `${label(name)}, ${subject}` : label(name),
        color: COLORS[index % COLORS.length],
        points: true,
        dash: subject === "embedding" ? [5, 3] : undefined,
        values: x.map((each) => values.get(each) ?? null),
      };
    }),
  );
  for (const [subject, title] of Object.entries(BASELINES)) {
    const value = evaluations.findLast((each) => each.subject === subject)?.metrics[names[0]];
    if (typeof value !== "number") continue;
    const dash = subject === "raw" ? [2, 4] : [8, 4];
    lines.push({
      label: `${title}${names.length > 1 ? `, ${label(names[0])}` : ""}`,
      color: "--muted-line",
      dash,
      values: x.map(() => value),
    });
  }
  return { x, lines };
}

/** @param {Api.JobView} job */
async function save(job) {
  const columns = await get(`/v1/jobs/${job.id}/metrics`, { max_points: 10_000 });
  const names = Object.keys(columns.values);
  const rows = columns.step.map((step, index) => [
    step,
    columns.time[index],
    ...names.map((name) => columns.values[name][index]),
  ]);
  saveCsv(`${job.name}-${job.id}`, ["step", "time", ...names], rows);
}

/** @param {{job: Api.JobView}} props */
function Nothing({ job }) {
  return html`<${Empty} title=${job.metrics_removed_at ? "The curves were removed" : "No curves yet"}>
    <p>${job.metrics_removed_at ? "Retention removes the metrics of old jobs." : "They appear with the first report, at the tenth step."}</p>
  <//>`;
}
