import { get, post, remove, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { label, moment } from "../core/format.js";
import { go, link } from "../core/router.js";
import { may } from "../core/session.js";
import { attempt } from "../core/toasts.js";
import { COLORS } from "../core/theme.js";
import { flat, shown } from "../job/settings.js";
import { Button, Icon } from "../ui/controls.js";
import { Facts, StatusChip, Table } from "../ui/values.js";
import { Dialog } from "../ui/dialog.js";
import { Loaded } from "../ui/state.js";
import { html, useEffect, useRef, useState } from "../vendor.js";
import { Curves } from "./curves.js";
import { Statuses } from "./experiments-page.js";
import { valueText, VariantTable } from "./variant-table.js";

/**
 * One experiment: what its figures allow to say, its jobs, the table and the curves.
 * @param {{id: string, query: URLSearchParams}} props
 */
export function ExperimentPage({ id, query }) {
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
