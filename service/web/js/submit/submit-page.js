import { get, newKey, post, useResource } from "../core/api.js";
import { go, link } from "../core/router.js";
import { say } from "../core/toasts.js";
import { Views } from "../datasets/views.js";
import { Button, Segmented, Select } from "../ui/controls.js";
import { Empty, Failure, Loaded, otherProblems } from "../ui/state.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor.js";
import { Advice, isOpen, withAdvice, withoutAdvice } from "./advice.js";
import { SpecText, useDraft } from "./draft.js";
import { Estimate } from "./estimate.js";
import { SpecForm } from "./spec-form.js";
import { changesOf, fieldsOf } from "./spec.js";

const SHAPES = { form: "Form", text: "YAML" };
const STARTS = [
  ["newest", "its newest checkpoint"],
  ["best", "its best checkpoint"],
  ["scratch", "scratch, with these settings"],
];

/** @typedef {Awaited<ReturnType<typeof load>>} Known */
/** `#/submit`, `#/submit?dataset=NAME` and `#/submit?clone=JOB`: the settings of a new job. @param {ViewProps} props */
export function SubmitPage({ query }) {
  const cloned = query.get("clone");
  const resource = useResource((signal) => load(cloned, signal), [cloned]);
  return html`<div class="page submit">
    <${Loaded} resource=${resource} what="the settings">
      ${(known) =>
        known.datasets.length === 0
          ? html`<${Empty} title="No data set is ready"><p><a class="button primary" href=${link(["datasets"], { add: "1" })}>Add a data set</a></p><//>`
          : html`<${Form} key=${cloned} known=${known} dataset=${query.get("dataset")} />`}
    <//>
  </div>`;
}

/** @param {string | null} cloned @param {AbortSignal} signal */
async function load(cloned, signal) {
  const [catalog, backbones, datasets, job] = await Promise.all([
    get("/v1/catalog/methods", {}, signal),
    get("/v1/catalog/backbones", {}, signal),
    get("/v1/datasets", { limit: 200 }, signal),
    cloned ? get(`/v1/jobs/${encodeURIComponent(cloned)}`, {}, signal) : null,
  ]);
  const namesOf = (/** @type {Record<string, any>} */ list) =>
    list.data.map((/** @type {{name: string}} */ each) => each.name);
  return {
    /** @type {Schema} */
    schema: catalog.job_schema,
    /** @type {string[]} */
    methods: namesOf(catalog).sort(),
    /** @type {string[]} */
    backbones: namesOf(backbones),
    datasets: datasets.data.filter((each) => each.state === "ready"),
    job,
  };
}

/** @param {{known: Known, dataset: string | null}} props */
function Form({ known, dataset }) {
  const { job, schema, datasets } = known;
  const { spec, change, unreadable, setUnreadable, answer, error, canSubmit, attempt } = useDraft(
    () => /** @type {Api.JobSpec} */ (job?.spec ?? { dataset: dataset ?? datasets[0].name }),
    "/v1/jobs/validate",
  );
  const [isText, setText] = useState(false);
  const [start, setStart] = useState("newest");
  const { advice, edit, stop } = useAdvice(spec, change, answer, job === null);
  const names = useMemo(() => [...fieldsOf(schema, spec).keys()], [schema, spec]);
  const others = isText ? error : otherProblems(error, names);
  // Of these settings: if the answer to a submission is lost, the next one does not make a second job.
  const key = useMemo(newKey, [spec, start]);
  const submit = async () => {
    const checkpoint = start === "scratch" ? null : start;
    const made = job
      ? await post(
          `/v1/jobs/${job.id}/clone`,
          { changes: changesOf(job.spec, spec, schema), checkpoint },
          key,
        )
      : await post("/v1/jobs", spec, key);
    say("Submitted.");
    for (const warning of made.warnings) say(warning);
    go(["jobs", made.id]);
  };
  const show = (/** @type {string} */ shape) => {
    stop();
    setText(shape === "text");
    setUnreadable("");
  };
  const chosen = datasets.find(
    (each) => each.id === spec.dataset || each.name === String(spec.dataset).split("@")[0],
  );
  return html`<div class="page-head">
      <h1>${job ? html`Clone of <a href=${link(["jobs", job.id])}>${job.name}</a>` : "New job"}</h1>
      <span class="grow"></span>
      <${Segmented} label="How settings are shown" options=${SHAPES} value=${isText ? "text" : "form"} onChange=${show} />
    </div>
    ${job && html`<label class="inline">Start from <${Select} options=${STARTS} value=${start} onChange=${setStart} /></label>`}
    <div class="submit-columns">
      <div>${isText ? html`<${SpecText} spec=${spec} problem=${unreadable} onProblem=${setUnreadable} onChange=${change} />` : html`<${SpecForm} schema=${schema} spec=${spec} known=${known} isClone=${job !== null} error=${error} onChange=${edit} />`}</div>
      <aside>
        ${others && !unreadable && html`<${Failure} error=${others} />`}
        ${error && !others && html`<div class="notice red"><strong>${error.errors?.length === 1 ? "1 setting needs" : `${error.errors?.length} settings need`} a change</strong><p>See the marked ${error.errors?.length === 1 ? "field" : "fields"}.</p></div>`}
        <${Estimate} answer=${answer} isValid=${!error && !unreadable} />
        ${!job && html`<${Advice} advice=${advice} spec=${spec} onChange=${isText ? undefined : change} />`}
        <${Button} label="Submit" kind="primary large" disabled=${!canSubmit} onClick=${() => attempt(submit)} />
        ${chosen && html`<${Views} key=${chosen.id} datasetId=${chosen.id} spec=${spec} />`}
      </aside>
    </div>`;
}

/**
 * Follows the advice on the images as soon as it is there, and again for another data set.
 * @param {Api.JobSpec} spec
 * @param {(spec: Api.JobSpec) => void} change
 * @param {Api.ValidatedJob | null} answer what the server says about the spec
 * @param {boolean} isNew whether the spec is new, not that of a job
 * @returns the newest `advice` on each field, followed or not; `edit` to change the spec; `stop` follows no more of it
 */
function useAdvice(spec, change, answer, isNew) {
  const isWanted = useRef(isNew);
  const [taken, setTaken] = useState(/** @type {Api.AdviceView[]} */ ([]));
  const newest = answer?.advice ?? [];
  const stop = () => {
    isWanted.current = false;
  };
  useEffect(() => {
    if (!answer || !isWanted.current) return;
    stop();
    setTaken(newest);
    // What was typed while the answer was on its way stays.
    change(
      withAdvice(
        spec,
        newest.filter((each) => isOpen(spec, each)),
      ),
    );
  }, [answer]);
  const edit = (/** @type {Api.JobSpec} */ next) => {
    if (isNew && next.dataset !== spec.dataset) {
      isWanted.current = true;
      setTaken([]);
      change(withoutAdvice(next, taken));
    } else change(next);
  };
  const older = taken.filter((each) => !newest.some(({ field }) => field === each.field));
  return { advice: [...older, ...newest], edit, stop };
}
