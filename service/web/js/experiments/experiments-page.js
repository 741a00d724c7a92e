import { get, post, remove, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { label, moment } from "../core/format.js";
import { go, link } from "../core/router.js";
import { may } from "../core/session.js";
import { COLORS } from "../core/theme.js";
import { attempt } from "../core/toasts.js";
import { flat, shown } from "../job/settings.js";
import { Button, Code, Icon } from "../ui/controls.js";
import { Dialog } from "../ui/dialog.js";
import { Empty, Loaded } from "../ui/state.js";
import { Ago, Facts, Meter, StatusChip, Table } from "../ui/values.js";
import { Curves } from "./curves.js";
import { NewExperiment } from "./new-experiment.js";
import { valueText, VariantTable } from "./variant-table.js";
import { html, useEffect, useRef, useState } from "../vendor.js";

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
function Statuses({ experiment }) {
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

/**
 * One experiment: what its figures allow to say, its jobs, the table and the curves.
 * @param {{id: string, query: URLSearchParams}} props
 */
function ExperimentPage({ id, query }) {
  const resource = useResource(
    (signal) => get(`/v1/experiments/${encodeURIComponent(id)}`, {}, signal),
    [id],
    { every: (answer) => (answer?.done === false ? 10 : 0) },
  );
  const { data, reload } = resource;
  // Late events of its jobs must not reload a deleted experiment.
  const isDeleted = useRef(false);
  useEvents(
    (event) =>
      event.type === "status" &&
      !isDeleted.current &&
      data?.jobs.some((job) => job.id === event.job_id) &&
      reload(),
    reload,
  );
  useEffect(() => {
    if (data) document.title = `${data.name} · DASL`;
  }, [data?.name]);
  const variants = (data?.variants ?? []).map((variant, index) => ({
    ...variant,
    color: COLORS[index % COLORS.length],
  }));
  return html`<div class="page">
    <${Loaded} resource=${resource} what="the experiment">
      ${(
        experiment,
      ) => html`<${Head} experiment=${experiment} reload=${reload} isDeleted=${isDeleted} />
        <${Findings} results=${experiment.results} />
        <${Jobs} experiment=${experiment} variants=${variants} />
        <${VariantTable} experiment=${experiment} variants=${variants} query=${query} />
        <${Curves} experiment=${experiment} variants=${variants} query=${query} />`}
    <//>
  </div>`;
}

/** @param {{experiment: Api.ExperimentView, reload: () => void, isDeleted: {current: boolean}}} props */
function Head({ experiment, reload, isDeleted }) {
  const [isAsked, setAsked] = useState(false);
  const { id, name, done, jobs } = experiment;
  const known = jobs
    .flatMap((job) => job.id ?? [])
    .slice(0, 16)
    .join(",");
  const cancel = async () => {
    const done = "Its jobs stop after their current step.";
    if (await attempt(() => post(`/v1/experiments/${id}/cancel`), done)) reload();
  };
  const drop = async (/** @type {Api.Parameters<"DELETE", "/v1/experiments/{}">} */ query) => {
    isDeleted.current = true;
    if (await attempt(() => remove(`/v1/experiments/${id}`, query), "Deleted."))
      return go(["experiments"]);
    isDeleted.current = false;
    setAsked(false);
  };
  return html`<header class="job-head">
    <p class="crumbs"><a href=${link(["experiments"])}>Experiments</a> <span class="muted">/</span> <code class="muted">${id}</code></p>
    <div class="title-line">
      <h1>${name}</h1><${StatusChip} status=${done ? "done" : "running"} />
      <span class="grow"></span>
      <div class="actions">
        <a class="button" href=${link(["compare"], { jobs: known, by: "variant" })}><${Icon} name="compare" /><span>Compare</span></a>
        <a class="button" href=${link(["jobs"], { experiment: id })}><span>Its jobs</span></a>
        ${
          may("submit") &&
          html`${!done && html`<${Button} icon="stop" label="Cancel" kind="danger" onClick=${cancel} />`}
          <${Button} icon="trash" label="Delete" kind="danger" onClick=${() => setAsked(true)} />`
        }
      </div>
    </div>
    <${Facts}
      items=${[
        ["Jobs", html`<${Statuses} experiment=${experiment} />`],
        ["Seeds", experiment.seeds.join(", ")],
        ["Baseline", experiment.baseline],
        ["Decided by", experiment.metric && label(experiment.metric)],
        ["Data set", experiment.spec.dataset],
        ["Submitted", moment(experiment.created_at)],
      ]}
    />
    ${
      isAsked &&
      html`<${Dialog}
      title=${`Delete “${name}”?`}
      onClose=${() => setAsked(false)}
      footer=${html`<${Button} label="Keep all" onClick=${() => setAsked(false)} />
        <${Button} label="Delete, keep its jobs" kind="danger" onClick=${() => drop({})} />
        ${done && html`<${Button} label="Delete with its jobs" kind="danger" onClick=${() => drop({ jobs: true })} />`}`}
    >
      <p>The comparison is removed for good. ${done ? "With its jobs, so are their checkpoints, metrics, logs and files." : "Its jobs go on; once all have ended, they can be deleted with it."}</p>
    <//>`
    }
  </header>`;
}

/** @param {{results: Api.Results}} props */
function Findings({ results: { sentences, notes } }) {
  if (!sentences.length && !notes.length) return null;
  return html`<section class="card findings" aria-label="Findings">
    ${sentences.map((sentence) => html`<p>${sentence}</p>`)} ${notes.map((note) => html`<p class="muted small">${note}</p>`)}
  </section>`;
}

/**
 * Variants by seeds: state and value of each job.
 * @param {{experiment: Api.ExperimentView, variants: import("./curves.js").Variant[]}} props
 */
function Jobs({ experiment, variants }) {
  const { seeds, jobs, results } = experiment;
  const decided = results.metrics.find((each) => each.metric === results.metric);
  const cell = (/** @type {string} */ variant, /** @type {number} */ seed) => {
    const job = jobs.find((each) => each.variant === variant && each.seed === seed);
    const value = decided?.variants.find((each) => each.variant === variant)?.values[seed];
    if (!job) return html`<td class="muted">–</td>`;
    const content =
      job.status === "succeeded" && results.metric && value !== undefined
        ? valueText(results.metric, value)
        : html`<${StatusChip} status=${job.status} />`;
    return html`<td>${job.id ? html`<a href=${link(["jobs", job.id])} title=${job.status}>${content}</a>` : content}</td>`;
  };
  return html`<section class="card">
    <h2>Jobs${results.metric ? html` <span class="muted">${label(results.metric)}</span>` : ""}</h2>
    <${Table} label="Jobs by variant and seed" head=${html`<th>Variant</th>${seeds.map((seed) => html`<th>Seed ${seed}</th>`)}<th>Changes</th>`}>
      ${variants.map(
        ({ name, color, changes }) => html`<tr>
          <th scope="row"><span class="mark" style=${{ "--mark": `var(${color})` }}></span>${name}</th>
          ${seeds.map((seed) => cell(name, seed))}
          <td class="why muted">${Object.keys(changes).length ? html`<code>${written(changes)}</code>` : "none"}</td>
        </tr>`,
      )}
    <//>
  </section>`;
}

/** Settings as one writes them with `--set`. @param {object} changes */
function written(changes) {
  return [...flat(changes)].map(([name, value]) => `${name}: ${shown(value)}`).join(", ");
}
