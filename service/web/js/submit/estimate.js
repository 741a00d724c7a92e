import { bytes, count, span } from "../core/format.js";
import { Facts } from "../ui/values.js";
import { html } from "../vendor.js";

/** What the job will be, as the server resolves and estimates it. @param {{answer: Api.ValidatedJob | null, isValid: boolean}} props */
export function Estimate({ answer, isValid }) {
  if (!answer) return null;
  const { estimate, resolved, warnings } = answer;
  /** @type {[string, Content][]} */
  const items = [
    ["Training images", count(estimate.train_images)],
    ["Held-out images", count(estimate.held_out_images)],
    [
      "Steps",
      `${count(estimate.total_steps)} (${count(estimate.epochs)} ${estimate.epochs === 1 ? "epoch" : "epochs"})`,
    ],
    ["Time", span(estimate.seconds)],
    ["Batch", count(resolved.train?.batch_size)],
    ["Image size", `${resolved.backbone?.image_size} px`],
    ["Parameters", count(estimate.backbone_parameters)],
    [
      "Memory of a worker",
      bytes(estimate.state_bytes_per_worker + (estimate.activation_bytes_per_worker ?? 0)),
    ],
    ["Checkpoints", `${estimate.checkpoints_kept} of ${bytes(estimate.checkpoint_bytes)}`],
  ];
  return html`<${Plan} items=${items} warnings=${warnings} isValid=${isValid} />`;
}

/**
 * What the jobs of an experiment will be, as the server resolves and estimates them.
 * @param {{answer: Api.ValidatedExperiment | null, isValid: boolean}} props
 */
export function ExperimentEstimate({ answer, isValid }) {
  if (!answer) return null;
  const { estimate, variants, warnings, notes } = answer;
  const [first] = variants;
  /** @type {[string, Content][]} */
  const items = [
    ["Jobs", count(estimate.jobs)],
    ["Time, one after another", span(estimate.seconds)],
    ["Checkpoints", bytes(estimate.checkpoints_bytes)],
    ["Training images", count(first.estimate.train_images)],
    ["Held-out images", count(first.estimate.held_out_images)],
  ];
  return html`<${Plan} items=${items} warnings=${warnings} isValid=${isValid}>
    <table class="plain-table">
      <thead><tr><th>Variant</th><th class="right">Steps</th><th class="right">Time of a job</th></tr></thead>
      <tbody>
        ${variants.map(
          (each) => html`<tr key=${each.name}>
            <td>${each.name}</td>
            <td class="right">${count(each.estimate.total_steps)}</td>
            <td class="right">${each.estimate.seconds ? span(each.estimate.seconds) : "–"}</td>
          </tr>`,
        )}
      </tbody>
    </table>
    ${notes.map((note) => html`<p class="muted small">${note}</p>`)}
  <//>`;
}

/** @param {{items: [string, Content][], warnings: string[], isValid: boolean, children?: Content}} props */
function Plan({ items, warnings, isValid, children }) {
  return html`<section class=${`card ${isValid ? "" : "stale"}`}>
    <h2>What will run</h2>
    <${Facts} items=${items} />
    ${children}
    ${warnings.map((text) => html`<div class="notice amber"><p>${text}</p></div>`)}
  </section>`;
}
