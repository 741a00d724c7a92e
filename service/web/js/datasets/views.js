import { get, post } from "../core/api.js";
import { useResource } from "../core/resource.js";
import { may } from "../core/session.js";
import { Button } from "../ui/button.js";
import { Failure } from "../ui/state.js";
import { html, useState } from "../vendor.js";

const IMAGES = 6;

/**
 * The views that a training would draw of its first images, before anything is submitted.
 * @param {{datasetId: string, spec?: Api.JobSpec}} props `spec`: the settings; without them, the defaults
 */
export function Views({ datasetId, spec }) {
  const [preview, setPreview] = useState(/** @type {Api.PreviewView | null} */ (null));
  const [error, setError] = useState(/** @type {Refusal | null} */ (null));
  const isDone = preview && (preview.state === "succeeded" || preview.state === "failed");
  useResource(
    async (signal) => {
      if (preview && !isDone) setPreview(await get(`/v1/previews/${preview.id}`, {}, signal));
    },
    [preview?.id, isDone],
    { every: preview && !isDone ? 1 : 0 },
  );
  const draw = async () => {
    setError(null);
    const { name: _, dataset: __, ...settings } = spec ?? {};
    try {
      setPreview(
        await post(`/v1/datasets/${datasetId}/previews`, { spec: settings, images: IMAGES }),
      );
    } catch (problem) {
      setError(problem);
    }
  };
  if (!may("submit")) return null;
  const sheet = preview?.files.find((file) => file.name === "sheet.png");
  return html`<section class="card">
    <header class="card-head">
      <h2>Views, as training draws them</h2>
      <${Button} icon="refresh" label=${preview ? "Draw again" : "Draw"} disabled=${preview !== null && !isDone} onClick=${draw} />
    </header>
    ${error && html`<${Failure} error=${error} />`}
    ${!preview && !error && html`<p class="muted">Each row is an image, then the crops, colors and blurs of which a step makes its pairs.</p>`}
    ${preview && !isDone && html`<p class="placeholder" role="status"><span class="spinner"></span> ${preview.state === "queued" ? "Waits for its turn" : "Drawing"} …</p>`}
    ${preview?.state === "failed" && html`<div class="notice red" role="alert"><p>${preview.error?.message}</p></div>`}
    ${preview && sheet && html`<div class="scroll-x" tabindex="0" role="region" aria-label="Views"><img class="views" src=${`/v1/previews/${preview.id}/files/${sheet.name}`} alt="Images, each with its views" /></div>`}
  </section>`;
}
