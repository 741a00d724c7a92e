import { newKey, post } from "../core/api.js";
import { count } from "../core/format.js";
import { go, link, setQuery } from "../core/router.js";
import { may } from "../core/session.js";
import { say } from "../core/toasts.js";
import { Button, Code } from "../ui/controls.js";
import { Empty, Failure, useRefusal } from "../ui/state.js";
import { Meter } from "../ui/values.js";
import { html, useEffect, useRef, useState } from "../vendor.js";

const COMMANDS = `dasl init /path/to/images --name birds
dasl datasets add /path/to/images --name birds
dasl submit spec.yaml --watch`;

/** No job matches, or there is none yet: then how to start. @param {{isFiltered: boolean}} props */
export function NoJobs({ isFiltered }) {
  if (isFiltered) {
    const clear = () =>
      setQuery({ status: null, q: null, method: null, dataset: null, tag: null, experiment: null });
    return html`<${Empty} title="No job matches">
      <p><${Button} icon="close" label="Clear the filters" onClick=${clear} /></p>
    <//>`;
  }
  if (!may("submit")) {
    return html`<${Empty} title="No jobs yet">
      <p>Your token may look at jobs, not submit them. They appear here as others submit them.</p>
    <//>`;
  }
  return html`<${Empty} title="No jobs yet">
    <${Demo} />
    <h3 class="steps-title">With your own images</h3>
    <ol class="steps">
      <li>
        <strong>Add your images.</strong> A folder is enough; labels are optional and only used to measure.
        <a class="button" href=${link(["datasets"], { add: "1" })}>Add a data set</a>
      </li>
      <li>
        <strong>Submit a job.</strong> Every setting has a default that fits the images and the machine.
        <a class="button" href=${link(["submit"])}>New job</a>
      </li>
      <li>
        <strong>Watch it learn.</strong> Curves, evaluations and a verdict in words appear here as they are measured.
      </li>
    </ol>
    <p>Or from a terminal:</p>
    <${Code} text=${COMMANDS} />
  <//>`;
}

const SECONDS = 1;

/** Registers the images that come with DASL, submits the demo's job, and opens it. */
function Demo() {
  const [dataset, setDataset] = useState(/** @type {Api.DatasetView | null} */ (null));
  const { refusal, attempt } = useRefusal();
  const isShown = useRef(true);
  const key = useRef(newKey());
  useEffect(
    () => () => {
      isShown.current = false;
    },
    [],
  );
  const run = async () => {
    const spec = await whenReady(setDataset, isShown);
    if (!spec) return;
    const job = await post("/v1/jobs", /** @type {Api.JobSpec} */ (spec), key.current);
    say("Submitted.");
    if (isShown.current) go(["jobs", job.id]);
  };
  return html`<section class="demo card" aria-labelledby="demo-title">
    <h3 id="demo-title">See it at work</h3>
    <p>4,080 words in 170 fonts come with DASL. One press adds them as a data set, trains SimCLR with DAR on two thirds of the fonts, and measures how well it finds the others by their look: some minutes on two cores.</p>
    <${Button} icon="play" label="Run the demo" kind="primary" onClick=${() => attempt(run).finally(() => setDataset(null))} />
    ${dataset && html`<${Reading} dataset=${dataset} />`}
    ${refusal && html`<${Failure} error=${refusal} />`}
  </section>`;
}

/**
 * Repeat the request until the images are read; return the spec of the job, or nothing if the view was left.
 * @param {(dataset: Api.DatasetView) => void} onChange
 * @param {{current: boolean}} isShown
 */
async function whenReady(onChange, isShown) {
  while (isShown.current) {
    const { dataset, spec } = await post("/v1/demo");
    if (dataset.state === "ready") return spec;
    if (dataset.state === "failed")
      throw new Error(
        `The images could not be read: ${dataset.error?.message ?? "see the data set"}.`,
      );
    onChange(dataset);
    await new Promise((resume) => setTimeout(resume, SECONDS * 1000));
  }
  return undefined;
}

/** @param {{dataset: Api.DatasetView}} props */
function Reading({ dataset }) {
  const { images_read: read, images_total: total } = dataset.progress ?? {};
  if (!total) return html`<p role="status"><span class="spinner"></span> Adding the images …</p>`;
  return html`<p role="status" class="progress"><${Meter} value=${read / total} label="Images read" /><span>${count(read)} of ${count(total)} images read</span></p>`;
}
