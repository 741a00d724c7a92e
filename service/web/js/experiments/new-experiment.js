import { get, newKey, post, useResource } from "../core/api.js";
import { go, link } from "../core/router.js";
import { say } from "../core/toasts.js";
import { SpecText, useDraft } from "../submit/draft.js";
import { ExperimentEstimate } from "../submit/estimate.js";
import { Button } from "../ui/controls.js";
import { Empty, Failure, Loaded } from "../ui/state.js";
import { html, useMemo } from "../vendor.js";

/**
 * `#/experiments?new=1` and `#/experiments?new=1&job=JOB`: the file of a new experiment, about a job's spec.
 * @param {{jobId: string | null}} props
 */
export function NewExperiment({ jobId }) {
  const resource = useResource((signal) => load(jobId, signal), [jobId]);
  return html`<div class="page submit">
    <${Loaded} resource=${resource} what="the settings">
      ${(spec) => (spec ? html`<${Form} key=${jobId} spec=${spec} />` : html`<${Empty} title="No data set is ready"><p><a class="button primary" href=${link(["datasets"], { add: "1" })}>Add a data set</a></p><//>`)}
    <//>
  </div>`;
}

/** The spec that all variants have in common; null without a data set. @param {string | null} jobId @param {AbortSignal} signal */
async function load(jobId, signal) {
  if (jobId) return common((await get(`/v1/jobs/${encodeURIComponent(jobId)}`, {}, signal)).spec);
  const { data } = await get("/v1/datasets", { limit: 200 }, signal);
  const ready = data.find((each) => each.state === "ready");
  return ready ? { dataset: ready.name, method: { name: "simclr" } } : null;
}

/** A job's spec without what the experiment sets itself. @param {Record<string, any>} spec */
function common({ name: _, ...spec }) {
  if (!spec.train) return spec;
  const { seed: __, ...train } = spec.train;
  return { ...spec, train };
}

/** What one asks first: does a regularizer help? @param {Record<string, any>} spec @returns {Api.ExperimentRequest} */
function proposed(spec) {
  /** @type {Record<string, object>} */
  const variants = { baseline: {} };
  for (const name of ["dar", "sec"]) {
    if (spec[name]) variants[`without-${name}`] = { [name]: null };
    else variants[name] = { [name]: {} };
  }
  return { name: "regularizers", seeds: [0, 1, 2, 3, 4], variants, spec };
}

/** @param {{spec: Record<string, any>}} props */
function Form({ spec }) {
  const draft = useDraft(() => proposed(spec), "/v1/experiments/validate");
  const { spec: experiment, unreadable, answer, error } = draft;
  // If the answer to a submission is lost, the next one does not make a second experiment.
  const key = useMemo(newKey, [experiment]);
  const submit = async () => {
    const made = await post("/v1/experiments", experiment, key);
    say(`Submitted ${made.jobs.length} jobs.`);
    for (const warning of made.warnings) say(warning);
    go(["experiments", made.id]);
  };
  return html`<div class="page-head"><h1>New experiment</h1></div>
    <p class="muted">Each variant is trained once with each seed. Its changes are nested as in a spec; null removes a regularizer.</p>
    <div class="submit-columns">
      <div><${SpecText} spec=${experiment} problem=${unreadable} onProblem=${draft.setUnreadable} onChange=${draft.change} /></div>
      <aside>
        ${error && !unreadable && html`<${Failure} error=${error} />`}
        <${ExperimentEstimate} answer=${answer} isValid=${!error && !unreadable} />
        <${Button} label="Submit" kind="primary large" disabled=${!draft.canSubmit} onClick=${() => draft.attempt(submit)} />
      </aside>
    </div>`;
}
