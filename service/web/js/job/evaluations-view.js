import { figure, label, number } from "../core/format.js";
import { metrics } from "../core/session.js";
import { saveCsv } from "../charts/csv.js";
import { Button } from "../ui/controls.js";
import { Empty, Loaded } from "../ui/state.js";
import { Table } from "../ui/values.js";
import { html } from "../vendor.js";
import { measured, useJobList } from "./job-list.js";

/** A table of all evaluations, the newest first. @param {JobProps} props */
export function EvaluationsView({ job }) {
  const evaluations = useJobList(job, `/v1/jobs/${job.id}/evaluations`, "evaluation");
  return html`<${Loaded} resource=${evaluations} what="evaluations">
    ${(rows) => (rows.length ? html`<${Evaluations} job=${job} rows=${rows} />` : html`<${Empty} title="Not evaluated yet"><p>Held-out images are evaluated before the first step, and as <code>evaluate.every_epochs</code> says.</p><//>`)}
  <//>`;
}

/** @param {{job: Api.JobView, rows: Api.EvaluationView[]}} props */
function Evaluations({ job, rows }) {
  const order = Object.keys(metrics());
  const rank = (/** @type {string} */ name) =>
    order.includes(name) ? order.indexOf(name) : order.length;
  const names = measured(rows).sort(
    (one, other) => rank(one) - rank(other) || (one < other ? -1 : 1),
  );
  const newest = [...rows].sort((one, other) => other.step - one.step);
  const save = () =>
    saveCsv(
      `${job.name}-evaluations`,
      ["step", "epoch", "subject", ...names],
      newest.map((row) => [
        row.step,
        row.epoch,
        row.subject,
        ...names.map((name) => row.metrics[name]),
      ]),
    );
  return html`<div class="toolbar"><span class="grow"></span><${Button} icon="download" label="CSV" onClick=${save} /></div>
    <${Table} label="Evaluations" head=${html`<th>Subject</th><th class="right">Epoch</th><th class="right">Step</th>${names.map((name) => html`<th class="right">${label(name)}</th>`)}`}>
      ${newest.map(
        (row) => html`<tr>
          <td>${row.subject}</td><td class="right">${number(row.epoch)}</td><td class="right">${row.step}</td>
          ${names.map((name) => html`<td class="right">${figure(name, row.metrics[name], 2)}</td>`)}
        </tr>`,
      )}
    <//>`;
}
