import { get, post, useResource } from "../core/api.js";
import { say } from "../core/toasts.js";
import { Button, Select } from "../ui/controls.js";
import { Dialog } from "../ui/dialog.js";
import { Failure, FieldProblem, otherProblems, useRefusal } from "../ui/state.js";
import { html, useState } from "../vendor.js";

const FEATURES = {
  pooled: "pooled: what training evaluates",
  cls: "cls: the class token of a transformer",
  patch: "patch: a vector for each patch",
};

/**
 * @typedef {Record<string, any>} Fields
 * @typedef {{title: string, about: string, action: string, fields: Fields, body?: (fields: Fields) => any}} Kind
 */
/** @satisfies {Record<string, Kind>} */
const KINDS = {
  evaluations: {
    title: "Evaluate on a data set",
    about: "Measures what training measures of held-out images, beside raw pixels.",
    action: "Evaluate",
    fields: { dataset: "", all: false, linear: false },
    body: ({ dataset, all, linear }) => ({
      dataset,
      settings: { linear, ...(all ? { holdout: null } : {}) },
    }),
  },
  embeddings: {
    title: "Embed a data set",
    about:
      "Writes a vector for each image. Neighbors of an image are searched in the newest embedding.",
    action: "Embed",
    fields: {
      dataset: "",
      features: "pooled",
      format: "parquet",
      dtype: "float32",
      normalize: false,
    },
  },
  exports: {
    title: "Export the backbone",
    about: "Converts the backbone to another format, for programs without DASL.",
    action: "Export",
    fields: { format: "onnx" },
  },
};

/**
 * Asks what a finished model should do, and requests it.
 * @param {{kind: keyof typeof KINDS, checkpoint: Api.CheckpointView, onClose: () => void, onDone: () => void}} props
 */
export function RunDialog({ kind, checkpoint, onClose, onDone }) {
  const { title, about, action, fields: initial, body } = /** @type {Kind} */ (KINDS[kind]);
  const [fields, setFields] = useState(initial);
  const { refusal: error, attempt } = useRefusal();
  const { data } = useResource((signal) => get("/v1/datasets", { limit: 200 }, signal), []);
  const ready = (data?.data ?? [])
    .filter((dataset) => dataset.state === "ready")
    .map((dataset) => dataset.name);
  const set = (/** @type {Fields} */ changes) => setFields({ ...fields, ...changes });
  /** @type {Fields} */
  const chosen = {
    ...fields,
    ...("dataset" in fields ? { dataset: fields.dataset || ready[0] } : {}),
  };
  const send = () =>
    attempt(async () => {
      const run = await post(`/v1/checkpoints/${checkpoint.id}/${kind}`, body?.(chosen) ?? chosen);
      say(run.state === "succeeded" ? "The same was done before: here it is." : "Queued.");
      onDone();
      onClose();
    });
  const choice = (
    /** @type {string} */ name,
    /** @type {string} */ label,
    /** @type {Record<string, string>} */ options,
  ) => html`<label>${label}
    <${Select} options=${Object.entries(options)} value=${chosen[name]} onChange=${(value) => set({ [name]: value })} />
    <${FieldProblem} error=${error} field=${name} />
  </label>`;
  const check = (/** @type {string} */ name, /** @type {string} */ text) =>
    html`<label class="inline"><input type="checkbox" checked=${fields[name]} onChange=${(event) => set({ [name]: event.currentTarget.checked })} />${text}</label>`;
  const same = (/** @type {string[]} */ ...names) =>
    Object.fromEntries(names.map((name) => [name, name]));
  const others = otherProblems(error, Object.keys(initial));
  return html`<${Dialog}
    title=${title}
    onClose=${onClose}
    footer=${html`<${Button} label="Cancel" onClick=${onClose} /><${Button} label=${action} kind="primary" disabled=${"dataset" in fields && !ready.length} onClick=${send} />`}
  >
    <p class="muted">${about}</p>
    <div class="form">
      ${"dataset" in fields && choice("dataset", "Data set", same(...ready))}
      ${kind === "evaluations" && html`${check("linear", "Also train a linear probe")} ${check("all", "Evaluate all images, compared with one another")}`}
      ${kind === "embeddings" && html`${choice("features", "Features", FEATURES)} ${choice("format", "Format", same("parquet", "safetensors"))} ${choice("dtype", "Numbers", same("float32", "float16"))} ${check("normalize", "Scale each vector to length 1")}`}
      ${kind === "exports" && choice("format", "Format", same("onnx", "torch-export", "hf", "transformers"))}
      ${others && html`<${Failure} error=${others} />`}
    </div>
  <//>`;
}
