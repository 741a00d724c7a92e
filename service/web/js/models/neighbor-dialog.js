import { get, request, useResource } from "../core/api.js";
import { number } from "../core/format.js";
import { addressOf } from "../job/artifacts-view.js";
import { Button } from "../ui/controls.js";
import { Dialog } from "../ui/dialog.js";
import { Failure, useRefusal } from "../ui/state.js";
import { Thumbnail } from "../ui/thumbnail.js";
import { html, useEffect, useRef, useState } from "../vendor.js";

const NUMBER = 12;
const SECONDS = 2;

/** @typedef {{sheet: import("../ui/thumbnail.js").Sheet, places: Map<string, number>}} Thumbnails */
/**
 * The images of the newest embedding that are nearest to a file, or to one of them by its key.
 * @param {{job: Api.JobView, checkpoint: Api.CheckpointView, onClose: () => void, onEmbed: () => void}} props
 */
export function NeighborDialog({ job, checkpoint, onClose, onEmbed }) {
  const [key, setKey] = useState("");
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const [answer, setAnswer] = useState(/** @type {Api.NeighborsView | null} */ (null));
  const [starts, setStarts] = useState(false);
  const { refusal, attempt } = useRefusal();
  const thumbnails = useResource((signal) => thumbnailsOf(job, signal), [job.id]);
  const closed = useRef(new AbortController());
  useEffect(() => () => closed.current.abort(), []);
  const { signal } = closed.current;
  const path = /** @type {const} */ (`/v1/checkpoints/${checkpoint.id}/neighbors`);
  const search = async () => {
    setAnswer(null);
    while (!signal.aborted) {
      try {
        const found = file
          ? await request(path, { method: "POST", query: { k: NUMBER }, file, signal })
          : await get(path, { image: key, k: NUMBER }, signal);
        return setAnswer(found);
      } catch (error) {
        if (error.type !== "search-starting") throw error;
        // The process that answers takes some seconds to start.
        setStarts(true);
        await new Promise((resolve) => setTimeout(resolve, SECONDS * 1000));
      }
    }
  };
  const ask = () => attempt(search).finally(() => setStarts(false));
  return html`<${Dialog} title="Neighbors of an image" onClose=${onClose} wide>
    <div class="form">
      <label>An image of this machine, at most 16 MB<input type="file" accept="image/*" onChange=${(event) => setFile(event.currentTarget.files?.[0] ?? null)} /></label>
      <label>Or the key of an image of the embedding<input value=${key} placeholder="class-1/12.png" disabled=${file !== null} onInput=${(event) => setKey(event.currentTarget.value)} /></label>
      <${Button} icon="search" label="Search" kind="primary" disabled=${!file && !key} onClick=${ask} />
    </div>
    ${starts && html`<p class="muted" role="status"><span class="spinner"></span> The search starts; this takes some seconds …</p>`}
    ${refusal && html`<${Failure} error=${refusal} />${refusal.type === "no-embedding" && html`<${Button} label="Embed a data set" onClick=${onEmbed} />`}`}
    ${answer && html`<${Found} neighbors=${answer.neighbors} thumbnails=${answer.dataset_id === job.dataset.id ? thumbnails.data : null} />`}
  <//>`;
}

/** @param {{neighbors: Api.NeighborEntry[], thumbnails?: Thumbnails | null}} props */
function Found({ neighbors, thumbnails }) {
  return html`<p class="muted small">The most similar first, with their cosine similarity: 1 is the same direction.</p>
    <ol class="nearest" aria-label="Neighbors">
    ${neighbors.map(({ key, label, similarity }) => {
      const index = thumbnails?.places.get(key);
      return html`<li>
        ${thumbnails && index !== undefined && html`<${Thumbnail} sheet=${thumbnails.sheet} index=${index} name=${key} />`}
        <span><code>${key}</code>${label !== null && html` <span class="muted">${label}</span>`}</span>
        <span title="Cosine similarity">${number(similarity)}</span>
      </li>`;
    })}
  </ol>`;
}

/**
 * The thumbnails of the job's map, which has some of its images; null without one.
 * @param {Api.JobView} job
 * @param {AbortSignal} signal
 * @returns {Promise<Thumbnails | null>}
 */
async function thumbnailsOf(job, signal) {
  const { data } = await get(`/v1/jobs/${job.id}/artifacts`, {}, signal);
  const [index, sheet] = ["thumbnails.json", "thumbnails.webp"].map((name) =>
    data.find((each) => each.name === name),
  );
  if (!index || !sheet) return null;
  const { keys, columns } = /** @type {{keys: string[], columns: number}} */ (
    await get(addressOf(job, index), {}, signal)
  );
  return {
    sheet: { address: addressOf(job, sheet), columns },
    places: new Map(keys.map((key, place) => [key, place])),
  };
}
