import { newKey, post } from "../core/api.js";
import { count } from "../core/format.js";
import { go } from "../core/router.js";
import { say } from "../core/toasts.js";
import { Button } from "../ui/button.js";
import { Meter } from "../ui/meter.js";
import { Failure } from "../ui/state.js";
import { html, useEffect, useRef, useState } from "../vendor.js";

const SECONDS = 1;

/** Registers the images that come with DASL, submits the demo's job, and opens it. */
export function Demo() {
  const [dataset, setDataset] = useState(/** @type {Api.DatasetView | null} */ (null));
  const [error, setError] = useState(/** @type {Refusal | null} */ (null));
  const isShown = useRef(true);
  const key = useRef(newKey());
  useEffect(
    () => () => {
      isShown.current = false;
    },
    [],
  );
  const run = async () => {
    setError(null);
    try {
      const spec = await whenReady(setDataset, isShown);
      if (!spec) return;
      const job = await post("/v1/jobs", /** @type {Api.JobSpec} */ (spec), key.current);
      say("Submitted.");
      if (isShown.current) go(["jobs", job.id]);
    } catch (problem) {
      setError(problem);
    } finally {
      setDataset(null);
    }
  };
  return html`<section class="demo card" aria-labelledby="demo-title">
    <h3 id="demo-title">See it at work</h3>
    <p>5,236 drawings of emoji come with DASL. One press adds them as a data set and trains SimCLR with DAR on them: some minutes on two cores.</p>
    <${Button} icon="play" label="Run the demo" kind="primary" onClick=${run} />
    ${dataset && html`<${Reading} dataset=${dataset} />`}
    ${error && html`<${Failure} error=${error} />`}
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
