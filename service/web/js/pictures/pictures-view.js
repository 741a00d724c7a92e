import { get, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { number } from "../core/format.js";
import { setQuery } from "../core/router.js";
import { addressOf } from "../job/artifacts-view.js";
import { Icon } from "../ui/controls.js";
import { Empty, Loaded } from "../ui/state.js";
import { html, useRef } from "../vendor.js";
import { Histograms } from "./histograms.js";
import { EmbeddingMap } from "./map.js";
import { Neighbors } from "./neighbors.js";

const DATA = ["neighbours.json", "map.json", "thumbnails.json", "histograms.json"];
/**
 * @typedef {{step: number, epoch: number}} Moment
 * @typedef {{
 *   "neighbours.json"?: import("./neighbors.js").Data,
 *   "map.json"?: {evaluations: import("./map.js").Places[]},
 *   "thumbnails.json"?: import("./map.js").Images,
 *   "histograms.json"?: import("./histograms.js").Data,
 *   files: Map<string, Api.ArtifactView>,
 * }} Pictures
 */

/** What a job has learned, to look at: neighbors, map and histograms at each evaluation. @param {JobProps} props */
export function PicturesView({ job, query }) {
  const pictures = usePictures(job);
  return html`<${Loaded} resource=${pictures} what="pictures">
    ${({ files, ...data }) => {
      const neighbors = data["neighbours.json"];
      const images = data["thumbnails.json"];
      const map = images && data["map.json"];
      const histograms = data["histograms.json"];
      /** @type {Moment[]} */
      const evaluations = (neighbors ?? map ?? histograms?.norms)?.evaluations ?? [];
      if (!evaluations.length) {
        return html`<${Empty} title="No pictures yet"><p>They are drawn at the first evaluation of held-out images, and again at each one after it.</p><//>`;
      }
      const wanted = Number(query.get("at") ?? Infinity);
      const index = indexAt(evaluations, wanted);
      const { step } = evaluations[index];
      const [report, nearest, thumbnails] = [
        "report.html",
        "neighbours.webp",
        "thumbnails.webp",
      ].map((name) => files.get(name));
      const sheet = (/** @type {Api.ArtifactView} */ file, /** @type {number} */ columns) => ({
        address: newest(job, file),
        columns,
      });
      return html`<${Moments} evaluations=${evaluations} index=${index} report=${report && addressOf(job, report)} />
        ${neighbors && nearest && html`<${Neighbors} data=${neighbors} shown=${neighbors.evaluations[indexAt(neighbors.evaluations, step)]} sheet=${sheet(nearest, neighbors.thumbnails.columns)} />`}
        ${map && thumbnails && html`<${EmbeddingMap} images=${images} shown=${map.evaluations[indexAt(map.evaluations, step)]} sheet=${sheet(thumbnails, images.columns)} />`}
        ${histograms && html`<${Histograms} data=${histograms} step=${step} />`}`;
    }}
  <//>`;
}

/** The index of the newest evaluation up to a step, or of the first one. @param {Moment[]} evaluations @param {number} step */
export function indexAt(evaluations, step) {
  return Math.max(
    0,
    evaluations.findLastIndex((each) => each.step <= step),
  );
}

/** @param {Api.JobView} job @param {Api.ArtifactView} file */
const newest = (job, file) => `${addressOf(job, file)}?v=${file.sha256.slice(0, 12)}`;

/** The name of an evaluation. @param {Moment} moment */
export function when({ step, epoch }) {
  return step === 0 ? "Start" : `Epoch ${number(epoch)}`;
}

/** A slider over the evaluations, which the address keeps. @param {{evaluations: Moment[], index: number, report?: string}} props */
function Moments({ evaluations, index, report }) {
  const choose = (/** @type {ChangeOf<HTMLInputElement>} */ event) => {
    const chosen = Number(event.currentTarget.value);
    setQuery({ at: chosen === evaluations.length - 1 ? null : String(evaluations[chosen].step) });
  };
  return html`<div class="toolbar moments">
    <label class="slider">
      Evaluation
      <input type="range" min="0" max=${evaluations.length - 1} step="1" value=${index} aria-valuetext=${when(evaluations[index])} onInput=${choose} />
      <output>${when(evaluations[index])}</output>
    </label>
    <span class="muted small">${index + 1} of ${evaluations.length}${index === evaluations.length - 1 ? ", the newest" : ""}</span>
    <span class="grow"></span>
    ${report && html`<a class="button" href=${report} download="report.html"><${Icon} name="download" /><span>Report</span></a>`}
  </div>`;
}

/** The data of the pictures; what has not changed is not fetched again. @param {Api.JobView} job */
function usePictures(job) {
  const known = useRef(/** @type {Map<string, {sha256: string, content: unknown}>} */ (new Map()));
  const resource = useResource(
    async (signal) => {
      const { data } = await get(`/v1/jobs/${job.id}/artifacts`, {}, signal);
      const files = new Map(data.map((file) => [file.name, file]));
      const answers = data
        .filter((file) => DATA.includes(file.name))
        .map(async (file) => {
          let picture = known.current.get(file.name);
          if (picture?.sha256 !== file.sha256) {
            picture = { sha256: file.sha256, content: await get(newest(job, file), {}, signal) };
            known.current.set(file.name, picture);
          }
          return [file.name, picture.content];
        });
      return /** @type {Pictures} */ ({ files, ...Object.fromEntries(await Promise.all(answers)) });
    },
    [job.id],
  );
  useEvents(
    (event) => event.job_id === job.id && event.type === "artifact" && resource.reload(),
    resource.reload,
  );
  return resource;
}
