import { link, setQuery } from "../core/router.js";
import { may } from "../core/session.js";
import { Button } from "../ui/button.js";
import { Code } from "../ui/copy.js";
import { Empty } from "../ui/state.js";
import { html } from "../vendor.js";
import { Demo } from "./demo.js";

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
