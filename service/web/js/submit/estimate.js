import { bytes, count, span } from "../core/format.js";
import { Facts } from "../ui/facts.js";
import { html } from "../vendor.js";

/** What the job will be, as the server resolves and estimates it. @param {{answer: Api.ValidatedJob | null, isValid: boolean}} props */
export function Estimate({ answer, isValid }) {
  if (!answer) return null;
  const { estimate, resolved, warnings } = answer;
  return html`<section class=${`card ${isValid ? "" : "stale"}`}>
    <h2>What will run</h2>
    <${Facts}
      items=${[
        ["Training images", count(estimate.train_images)],
        ["Held-out images", count(estimate.held_out_images)],
        ["Steps", `${count(estimate.total_steps)} (${count(estimate.epochs)} epochs)`],
        ["Time", span(estimate.seconds)],
        ["Batch", count(resolved.train?.batch_size)],
        ["Image size", `${resolved.backbone?.image_size} px`],
        ["Parameters", count(estimate.backbone_parameters)],
        [
          "Memory of a worker",
          bytes(estimate.state_bytes_per_worker + (estimate.activation_bytes_per_worker ?? 0)),
        ],
        ["Checkpoints", `${estimate.checkpoints_kept} of ${bytes(estimate.checkpoint_bytes)}`],
      ]}
    />
    ${warnings.map((text) => html`<div class="notice amber"><p>${text}</p></div>`)}
  </section>`;
}
