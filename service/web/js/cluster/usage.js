import { get } from "../core/api.js";
import { count } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { Failure } from "../ui/state.js";
import { Table } from "../ui/table.js";
import { html, useState } from "../vendor.js";

const DAYS = [7, 30, 90];

/** GPU- and CPU-hours of the last days. */
export function Usage() {
  const [days, setDays] = useState(30);
  const { data, error, reload } = useResource(
    (signal) =>
      get(
        "/v1/usage",
        { from: new Date(Date.now() - days * 86_400_000).toISOString(), group_by: "user" },
        signal,
      ),
    [days],
  );
  return html`<section class="card">
    <header class="card-head">
      <h2>Use of the cluster</h2>
      <div class="segmented" role="group" aria-label="Period">
        ${DAYS.map((each) => html`<button type="button" class="button" aria-pressed=${each === days} onClick=${() => setDays(each)}>${each} days</button>`)}
      </div>
    </header>
    ${error && html`<${Failure} error=${error} onRetry=${reload} />`}
    ${
      data &&
      (data.data.length === 0
        ? html`<p class="muted">No use in this time.</p>`
        : html`<${Table} label="Use of the cluster" head=${html`<th>Who</th><th class="right">Jobs</th><th class="right">GPU-hours</th><th class="right">CPU-hours</th>`}>
          ${data.data.map((group) => html`<tr><td>${group.name ?? group.value ?? "without a user"}</td><td class="right">${count(group.jobs)}</td><td class="right">${hours(group.gpu_hours)}</td><td class="right">${hours(group.cpu_hours)}</td></tr>`)}
        <//>`)
    }
  </section>`;
}

/** Hours with two decimals, as bills have them. @param {number} value */
function hours(value) {
  if (value > 0 && value < 0.01) return "< 0.01";
  return value.toLocaleString("en", { maximumFractionDigits: 2 });
}
