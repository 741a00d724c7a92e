import { ago, bytes } from "../core/format.js";
import { Empty, Loaded } from "../ui/state.js";
import { html } from "../vendor.js";
import { useJobList } from "./job-list.js";

/** The pictures that a job drew, and its other files. @param {JobProps} props */
export function ArtifactsView({ job }) {
  const resource = useJobList(job, `/v1/jobs/${job.id}/artifacts`, "artifact");
  return html`<${Loaded} resource=${resource} what="files">
    ${(files) => {
      if (!files.length)
        return html`<${Empty} title="No files yet"><p>Pictures and their data are written at evaluations, and at the end.</p><//>`;
      const isPicture = (/** @type {Api.ArtifactView} */ file) =>
        /^image\/(png|jpeg|webp)$/.test(file.content_type);
      return html`<div class="pictures">
          ${files.filter(isPicture).map(
            (file) => html`<figure class="card">
              <a href=${addressOf(job, file)} target="_blank" rel="noopener"><img src=${`${addressOf(job, file)}?v=${file.sha256.slice(0, 12)}`} alt=${title(file.name)} loading="lazy" /></a>
              <figcaption>${title(file.name)} <span class="muted">${ago(file.created_at)}</span></figcaption>
            </figure>`,
          )}
        </div>
        <ul class="files card">
          ${files.map((file) => html`<li><a href=${addressOf(job, file)} download=${file.name}>${file.name}</a><span class="muted">${bytes(file.size)} · ${file.content_type}</span></li>`)}
        </ul>`;
    }}
  <//>`;
}

/** The address of an artifact. @param {AnyJob} job @param {Api.ArtifactView} file */
export const addressOf = (job, file) =>
  `v1/jobs/${job.id}/artifacts/${encodeURIComponent(file.name)}`;
const title = (/** @type {string} */ name) => name.replace(/\.\w+$/, "").replaceAll(/[_-]/g, " ");
