import { get, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { label } from "../core/format.js";
import { link } from "../core/router.js";
import { may } from "../core/session.js";
import { Code, Icon } from "../ui/controls.js";
import { Ago, Meter, Table } from "../ui/values.js";
import { Empty, Loaded } from "../ui/state.js";
import { html } from "../vendor.js";
import { ExperimentPage } from "./experiment-page.js";
import { NewExperiment } from "./new-experiment.js";

/**
 * `#/experiments` is the list, `#/experiments/EXPERIMENT` one of them, `#/experiments?new=1` a new one.
 * @param {ViewProps} props
 */
export function ExperimentsPage({ rest, query }) {
  if (query.get("new")) return html`<${NewExperiment} jobId=${query.get("job")} />`;
  return rest.length
    ? html`<${ExperimentPage} key=${rest[0]} id=${rest[0]} query=${query} />`
    : html`<${List} />`;
}

function List() {
  const resource = useResource((signal) => get("/v1/experiments", { limit: 200 }, signal), [], {
    every: 20,
  });
  useEvents((event) => event.type === "status" && resource.reload(), resource.reload);
  return html`<div class="page">
    <div class="page-head">
      <h1>Experiments</h1>
      <span class="grow"></span>
      ${may("submit") && html`<a class="button primary" href=${link(["experiments"], { new: "1" })}><${Icon} name="plus" /><span>New experiment</span></a>`}
    </div>
    <${Loaded} resource=${resource} what="experiments">
      ${({ data, has_more }) =>
        data.length
          ? html`<${Experiments} rows=${data} />${has_more && html`<p class="muted">The newest ${data.length}.</p>`}`
          : html`<${Empty} title="No experiments yet">
              <p>An experiment trains variants of a spec with the same seeds, and says in a sentence what their differences allow to say. Does DAR pay on your images?</p>
              <${Code} text="dasl experiments submit examples/is-dar-worth-it.yaml --set dataset=birds" />
            <//>`}
    <//>
  </div>`;
}

/** @param {{rows: Api.ExperimentSummary[]}} props */
function Experiments({ rows }) {
  return html`<${Table} label="Experiments" flush head=${html`<th>Name</th><th>Jobs</th><th>Variants</th><th class="right">Seeds</th><th>Decided by</th><th class="right">Created</th>`}>
    ${rows.map(
      (row) => html`<tr key=${row.id}>
        <td><a class="name" href=${link(["experiments", row.id])}>${row.name}</a></td>
        <td><${Statuses} experiment=${row} /></td>
        <td class="where" title=${row.variants.map((each) => each.name).join(", ")}>${row.variants.map((each) => each.name).join(", ")}</td>
        <td class="right">${row.seeds.length}</td>
        <td>${row.metric ? label(row.metric) : html`<span class="muted">not measured yet</span>`}</td>
        <td class="right"><${Ago} at=${row.created_at} /></td>
      </tr>`,
    )}
  <//>`;
}

/** How many jobs of an experiment have ended, and how. @param {{experiment: Pick<Api.ExperimentSummary, "statuses" | "name">}} props */
export function Statuses({ experiment }) {
  const { statuses, name } = experiment;
  const all = Object.values(statuses).reduce((sum, each) => sum + each, 0);
  const ended = ["succeeded", "failed", "cancelled", "deleted"].reduce(
    (sum, status) => sum + (statuses[status] ?? 0),
    0,
  );
  const others = Object.entries(statuses).filter(
    ([status, number]) => number && status !== "succeeded",
  );
  return html`<span class="progress">
    <${Meter} value=${ended / (all || 1)} label=${`Jobs of ${name} that have ended`} tone=${statuses.failed ? "amber" : ""} />
    <span class="progress-text"><span>${statuses.succeeded ?? 0} of ${all}</span><span class="muted">${others.map(([status, number]) => `${number} ${status.replaceAll("_", " ")}`).join(", ")}</span></span>
  </span>`;
}
