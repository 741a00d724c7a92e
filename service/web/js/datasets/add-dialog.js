import { post } from "../core/api.js";
import { go } from "../core/router.js";
import { Button } from "../ui/button.js";
import { Dialog } from "../ui/dialog.js";
import { FieldProblem, otherProblems } from "../ui/field-problem.js";
import { Failure } from "../ui/state.js";
import { html, useState } from "../vendor.js";

const FIELDS = ["name", "uri", "source.split", "source.labels"];

/** The name of a folder, which its data set has by default, as with `dasl datasets add`. @param {string} uri */
const nameOf = (uri) => uri.split("/").filter(Boolean).at(-1) ?? "";

/** Registers images by their path or URI. */
export function AddDialog({ onClose, onAdded }) {
  const [fields, setFields] = useState({ name: "", uri: "", split: "", labels: "auto" });
  const [error, setError] = useState(null);
  const set = (name) => (event) => setFields({ ...fields, [name]: event.target.value });
  const add = async () => {
    const source = { labels: fields.labels, ...(fields.split && { split: fields.split }) };
    try {
      const added = await post("/v1/datasets", { name: fields.name || nameOf(fields.uri), uri: fields.uri, source });
      onAdded();
      go(["datasets", added.id]);
    } catch (problem) {
      setError(problem);
    }
  };
  const others = otherProblems(error, FIELDS);
  return html`<${Dialog}
    title="Add a data set"
    onClose=${onClose}
    footer=${html`<${Button} label="Cancel" onClick=${onClose} /><${Button} label="Add" kind="primary" onClick=${add} />`}
  >
    <div class="form">
      <label>Path or URI<input value=${fields.uri} onInput=${set("uri")} placeholder="/data/birds or s3://bucket/birds" spellcheck=${false} /><${FieldProblem} error=${error} field="uri" /></label>
      <p class="hint">As the machines that train see it: a folder, a <code>.tar</code>, <code>.zip</code>, <code>.csv</code>, <code>.parquet</code> or <code>.npy</code>. Files of your own machine are sent by <code>dasl datasets add --upload</code>.</p>
      <label>Name<input value=${fields.name} onInput=${set("name")} placeholder=${nameOf(fields.uri) || "birds"} /><${FieldProblem} error=${error} field="name" /></label>
      <label>Split, if there are several<input value=${fields.split} onInput=${set("split")} placeholder="train" /><${FieldProblem} error=${error} field="source.split" /></label>
      <label>Labels
        <select value=${fields.labels} onChange=${set("labels")}><option value="auto">As the source has them: folders or a column</option><option value="none">None</option></select>
      </label>
      ${others && html`<${Failure} error=${others} />`}
    </div>
  <//>`;
}
