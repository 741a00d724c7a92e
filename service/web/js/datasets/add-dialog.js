import { get, post, Problem } from "../core/api.js";
import { bytes, count } from "../core/format.js";
import { go } from "../core/router.js";
import { say } from "../core/toasts.js";
import { Button, Segmented } from "../ui/controls.js";
import { Dialog } from "../ui/dialog.js";
import { Failure, FieldProblem, otherProblems, useRefusal } from "../ui/state.js";
import { html, useState } from "../vendor.js";
import { send } from "./uploads.js";

const PLACES = { there: "Where jobs run", here: "On this computer" };
const FIELDS = ["name", "uri", "source.split", "source.labels"];
/** Whether the service runs on the browser's machine, and can read its files by their paths. */
const IS_LOCAL = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);

/** The name of a folder, which its data set has by default, as with `dasl datasets add`. @param {string} uri */
const nameOf = (uri) => uri.split("/").filter(Boolean).at(-1) ?? "";

/** @typedef {import("./content.js").Content} Images */
/**
 * Registers images by their path or URI, or uploads them from this computer.
 * @param {{onClose: () => void, onAdded: () => void}} props
 */
export function AddDialog({ onClose, onAdded }) {
  const [isUpload, setUpload] = useState(!IS_LOCAL);
  const [fields, setFields] = useState({ name: "", uri: "", split: "", labels: "auto" });
  const [content, setContent] = useState(/** @type {Images | null} */ (null));
  const { refusal: error, attempt, forget } = useRefusal();
  const switchTo = (/** @type {string} */ place) => {
    setUpload(place === "here");
    forget();
  };
  const set =
    (/** @type {keyof typeof fields} */ name) =>
    (/** @type {ChangeOf<HTMLInputElement | HTMLSelectElement>} */ event) =>
      setFields({ ...fields, [name]: event.currentTarget.value });
  const proposed = isUpload ? (content?.name ?? "") : nameOf(fields.uri);
  const add = async () => {
    const source = /** @type {Api.SourceOptions} */ ({
      labels: fields.labels,
      ...(fields.split && { split: fields.split }),
    });
    const about = { name: fields.name || proposed, source };
    const images = isUpload ? content : null;
    const added = images
      ? await createUpload(about, images)
      : await post("/v1/datasets", { ...about, uri: fields.uri });
    if (images) void send(added.id, images, added.upload?.received ?? 0);
    onAdded();
    go(["datasets", added.id]);
  };
  const choose = (/** @type {ChangeOf<HTMLInputElement>} */ { currentTarget: field }) => {
    const files = [...(field.files ?? [])];
    field.value = ""; // Else choosing the same files again fires no event.
    setContent(null);
    return attempt(async () => setContent((await import("./content.js")).contentOf(files)));
  };
  const others = otherProblems(error, FIELDS);
  return html`<${Dialog}
    title="Add a data set"
    onClose=${onClose}
    footer=${html`<${Button} label="Cancel" onClick=${onClose} />
      <${Button} label=${isUpload ? "Upload" : "Add"} kind="primary" disabled=${isUpload && !content} onClick=${() => attempt(add)} />`}
  >
    <div class="form">
      <${Segmented} label="Where the images are" options=${PLACES} value=${isUpload ? "here" : "there"} onChange=${switchTo} />
      ${isUpload ? html`<${FilePicker} content=${content} onChoose=${choose} />` : html`<${LocationField} uri=${fields.uri} onInput=${set("uri")} error=${error} />`}
      <label>Name<input value=${fields.name} onInput=${set("name")} placeholder=${proposed || "birds"} /><${FieldProblem} error=${error} field="name" /></label>
      <label>Split, if there are several<input value=${fields.split} onInput=${set("split")} placeholder="train" /><${FieldProblem} error=${error} field="source.split" /></label>
      <label>Labels
        <select value=${fields.labels} onChange=${set("labels")}><option value="auto">As the source has them: folders or a column</option><option value="none">None</option></select>
      </label>
      ${others && html`<${Failure} error=${others} />`}
    </div>
  <//>`;
}

/** @param {{uri: string, onInput: (event: ChangeOf<HTMLInputElement>) => void, error: Refusal | null}} props */
function LocationField({ uri, onInput, error }) {
  return html`<label>Path or URI<input value=${uri} onInput=${onInput} placeholder="/data/birds or s3://bucket/birds" spellcheck=${false} /><${FieldProblem} error=${error} field="uri" /></label>
    <p class="hint">As the machines that train see it: a folder, a <code>.tar</code>, <code>.zip</code>, <code>.csv</code>, <code>.parquet</code> or <code>.npy</code>.</p>`;
}

/** @param {{content: Images | null, onChoose: (event: ChangeOf<HTMLInputElement>) => void}} props */
function FilePicker({ content, onChoose }) {
  return html`<div class="segmented">
      <label class="button file"><span>Choose a folder</span><input type="file" webkitdirectory onChange=${onChoose} /></label>
      <label class="button file"><span>Choose files</span><input type="file" multiple onChange=${onChoose} /></label>
    </div>
    <p class="hint" role="status">${content ? summary(content) : html`A folder of images, several images, or one <code>.tar</code>, <code>.zip</code>, <code>.parquet</code> or <code>.npy</code>. Subfolders are labels.`}</p>`;
}

/** @param {Images} images */
function summary({ name, images, leftOut, size, filename }) {
  const what =
    images === null
      ? filename
      : `${name && `${name}: `}${count(images)} ${images === 1 ? "image" : "images"}`;
  const rest = leftOut
    ? ` ${count(leftOut)} other ${leftOut === 1 ? "file is" : "files are"} left out.`
    : "";
  return `${what}, ${bytes(size)}.${rest}`;
}

/**
 * Create the data set of an upload, or return the unfinished one of this name if it has the same content.
 * @param {{name: string, source: Api.SourceOptions}} about
 * @param {Images} content
 */
async function createUpload(about, { filename, size, fingerprint }) {
  const upload = { filename, size, fingerprint };
  try {
    return await post("/v1/datasets", { ...about, upload });
  } catch (error) {
    if (!(error instanceof Problem) || error.type !== "name-taken") throw error;
    const { data } = await get("/v1/datasets", { name: about.name });
    const unfinished = data.find((each) => each.state === "uploading");
    if (!unfinished?.upload) throw error;
    if (unfinished.upload.size !== size || unfinished.upload.fingerprint !== fingerprint) {
      const detail = `The unfinished upload of ${about.name} has other files, or they changed since it began. Choose the same files or another name, or remove that data set.`;
      throw new Problem({ type: "upload-differs", title: "Other files", status: 409, detail });
    }
    say("Resuming the unfinished upload, with its original split and labels.");
    return unfinished;
  }
}
