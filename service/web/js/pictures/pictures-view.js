import { get } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { number } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { setQuery } from "../core/router.js";
import { addressOf } from "../job/artifacts-view.js";
import { Icon } from "../ui/icon.js";
import { Empty, Loaded } from "../ui/state.js";
import { html, useRef } from "../vendor.js";
import { Histograms } from "./histograms.js";
import { EmbeddingMap } from "./map.js";
import { Neighbors } from "./neighbors.js";

const DATA = ["neighbours.json", "map.json", "thumbnails.json", "histograms.json"];

/** What a job has learned, to look at: neighbors, map and histograms at each evaluation. */
export function PicturesView({ job, query }) {
  const pictures = usePictures(job);
  return html`<${Loaded} resource=${pictures} what="pictures">
    ${({ files, ...data }) => {
      const neighbors = data["neighbours.json"];
      const map = data["thumbnails.json"] && data["map.json"];
      const histograms = data["histograms.json"];
      const evaluations = (neighbors ?? map ?? histograms?.norms)?.evaluations ?? [];
      if (!evaluations.length) {
        return html`<${Empty} title="No pictures yet"><p>They are drawn at the first evaluation of held-out images, and again at each one after it.</p><//>`;
      }
      const wanted = Number(query.get("at") ?? Infinity);
      const index = Math.max(0, evaluations.findLastIndex((each) => each.step <= wanted));
      const { step } = evaluations[index];
      const sheet = (name, columns) => ({ address: newest(job, files.get(name)), columns });
      const at = (shown) => shown.evaluations.findLast((each) => each.step <= step) ?? shown.evaluations[0];
      return html`<${Moments} evaluations=${evaluations} index=${index} report=${files.has("report.html") && addressOf(job, files.get("report.html"))} />
        ${neighbors && files.has("neighbours.webp") && html`<${Neighbors} data=${neighbors} shown=${at(neighbors)} sheet=${sheet("neighbours.webp", neighbors.thumbnails.columns)} />`}
        ${map && files.has("thumbnails.webp") && html`<${EmbeddingMap} images=${data["thumbnails.json"]} shown=${at(map)} sheet=${sheet("thumbnails.webp", data["thumbnails.json"].columns)} />`}
        ${histograms && html`<${Histograms} data=${histograms} step=${step} />`}`;
    }}
  <//>`;
}

const newest = (job, file) => file && `${addressOf(job, file)}?v=${file.sha256.slice(0, 12)}`;

/** The name of an evaluation. */
export function when({ step, epoch }) {
  return step === 0 ? "Start" : `Epoch ${number(epoch)}`;
}

/** A slider over the evaluations, which the address keeps. */
function Moments({ evaluations, index, report }) {
  const choose = (event) => {
    const chosen = Number(event.target.value);
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

/** The data of the pictures; what has not changed is not fetched again. */
function usePictures(job) {
  const known = useRef(new Map());
  const resource = useResource(
    async (signal) => {
      const { data } = await get(`/v1/jobs/${job.id}/artifacts`, {}, signal);
      const files = new Map(data.map((file) => [file.name, file]));
      const answers = DATA.filter((name) => files.has(name)).map(async (name) => {
        const file = files.get(name);
        if (known.current.get(name)?.sha256 !== file.sha256) {
          known.current.set(name, { sha256: file.sha256, content: await get(newest(job, file), {}, signal) });
        }
        return [name, known.current.get(name).content];
      });
      return { files, ...Object.fromEntries(await Promise.all(answers)) };
    },
    [job.id],
  );
  useEvents((event) => event.job_id === job.id && event.type === "artifact" && resource.reload(), resource.reload);
  return resource;
}
