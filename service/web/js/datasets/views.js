import { get, post, useResource } from "../core/api.js";
import { may } from "../core/session.js";
import { Button } from "../ui/controls.js";
import { Failure, useRefusal } from "../ui/state.js";
import { html, useState } from "../vendor.js";

const IMAGES = 6;

/**
 * The views that a training would draw of its first images, before anything is submitted.
 * @param {{datasetId: string, spec?: Api.JobSpec}} props `spec`: the settings; without them, the defaults
 */
export function Views({ datasetId, spec }) {
  const [preview, setPreview] = useState(/** @type {Api.PreviewView | null} */ (null));
  const { refusal, attempt } = useRefusal();
  const isDone = preview && (preview.state === "succeeded" || preview.state === "failed");
  useResource(
    async (signal) => {
      if (preview && !isDone) setPreview(await get(`/v1/previews/${preview.id}`, {}, signal));
    },
    [preview?.id, isDone],
    { every: preview && !isDone ? 1 : 0 },
  );
  const draw = async () => {
    const { name: _, dataset: __, ...settings } = spec ?? {};
    const request = { spec: settings, images: IMAGES };
    setPreview(await post(`/v1/datasets/${datasetId}/previews`, request));
  };
  if (!may("submit")) return null;
  const sheet = preview?.files.find((file) => file.name === "sheet.png");
  return html`<section class="card">
    <header class="card-head">
      <h2>Views, as training draws them</h2>
      <${Button} icon="refresh" label=${preview ? "Draw again" : "Draw"} disabled=${preview !== null && !isDone} onClick=${() => attempt(draw)} />
    </header>
    ${refusal && html`<${Failure} error=${refusal} />`}
    ${!preview && !refusal && html`<p class="muted">Each row is an image, then the crops, colors and blurs of which a step makes its pairs. The experiment <code>examples/which-views.yaml</code> tells which of them help.</p>`}
    ${preview && !isDone && html`<p class="placeholder" role="status"><span class="spinner"></span> ${preview.state === "queued" ? "Waits for its turn" : "Drawing"} …</p>`}
    ${preview?.state === "failed" && html`<div class="notice red" role="alert"><p>${preview.error?.message}</p></div>`}
    ${preview && sheet && html`<div class="scroll-x" tabindex="0" role="region" aria-label="Views"><img class="views" src=${`v1/previews/${preview.id}/files/${sheet.name}`} alt="Images, each with its views" /></div>`}
  </section>`;
}
