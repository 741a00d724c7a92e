import { get, newKey, post, useResource } from "../core/api.js";
import { go, link } from "../core/router.js";
import { say } from "../core/toasts.js";
import { Advice, withAdvice } from "../submit/advice.js";
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
      ${(known) => (known ? html`<${Form} key=${jobId} ...${known} />` : html`<${Empty} title="No data set is ready"><p><a class="button primary" href=${link(["datasets"], { add: "1" })}>Add a data set</a></p><//>`)}
    <//>
  </div>`;
}

/** The spec that all variants have in common, with the advice that it follows; null without a data set. @param {string | null} jobId @param {AbortSignal} signal */
async function load(jobId, signal) {
  if (jobId) {
    const job = await get(`/v1/jobs/${encodeURIComponent(jobId)}`, {}, signal);
    return { spec: common(job.spec), advice: [] };
  }
  const { data } = await get("/v1/datasets", { limit: 200 }, signal);
  const ready = data.find((each) => each.state === "ready");
  if (!ready) return null;
  /** @type {Api.JobSpec} */
  const spec = { dataset: ready.name, method: { name: "simclr" } };
  try {
    const { advice = [] } = await post("/v1/jobs/validate", spec);
    return { spec: withAdvice(spec, advice), advice };
  } catch {
    return { spec, advice: [] }; // The form says why.
  }
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

/** @param {{spec: Record<string, any>, advice: Api.AdviceView[]}} props */
function Form({ spec, advice }) {
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
        <${Advice} advice=${advice} />
        <${Button} label="Submit" kind="primary large" disabled=${!draft.canSubmit} onClick=${() => draft.attempt(submit)} />
      </aside>
    </div>`;
}
