import { bytes, count, span } from "../core/format.js";
import { Facts } from "../ui/facts.js";
import { html } from "../vendor.js";

/**
 * What the jobs of an experiment will be, as the server resolves and estimates them.
 * @param {{answer: Api.ValidatedExperiment | null, isValid: boolean}} props
 */
export function ExperimentEstimate({ answer, isValid }) {
  if (!answer) return null;
  const { estimate, variants, warnings } = answer;
  const [first] = variants;
  return html`<section class=${`card ${isValid ? "" : "stale"}`}>
    <h2>What will run</h2>
    <${Facts}
      items=${[
        ["Jobs", count(estimate.jobs)],
        ["Time, one after another", span(estimate.seconds)],
        ["Checkpoints", bytes(estimate.checkpoints_bytes)],
        ["Training images", count(first.estimate.train_images)],
        ["Held-out images", count(first.estimate.held_out_images)],
      ]}
    />
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
    ${warnings.map((text) => html`<div class="notice amber"><p>${text}</p></div>`)}
  </section>`;
}
