import { shown } from "../job/settings.js";
import { Button } from "../ui/controls.js";
import { html } from "../vendor.js";
import { settingAt, withSetting } from "./spec.js";

/** A spec with what is advised. @param {Api.JobSpec} spec @param {Api.AdviceView[]} advice @returns {Api.JobSpec} */
export function withAdvice(spec, advice) {
  return settingsOf(advice).reduce(
    (next, [field, value]) => withSetting(next, field.split("."), value),
    spec,
  );
}

/** A spec in which what is advised is open again, as far as it was followed. @param {Api.JobSpec} spec @param {Api.AdviceView[]} advice @returns {Api.JobSpec} */
export function withoutAdvice(spec, advice) {
  return settingsOf(advice)
    .filter(([field, value]) => settingAt(spec, field.split(".")) === value)
    .reduce((next, [field]) => without(next, field.split(".")), spec);
}

/** A spec without a setting, and without the sections that it leaves empty. @param {any} spec @param {string[]} path @returns {any} */
function without(spec, [name, ...rest]) {
  const inner = rest.length ? without(spec[name], rest) : {};
  const { [name]: _, ...others } = spec;
  return Object.keys(inner).length ? { ...spec, [name]: inner } : others;
}

/** Whether a spec sets nothing of what is advised. @param {Api.JobSpec} spec @param {Api.AdviceView} advice */
export function isOpen(spec, advice) {
  return settingsOf([advice]).every(([field]) => settingAt(spec, field.split(".")) === undefined);
}

/** Whether a spec follows an advice. @param {Api.JobSpec} spec @param {Api.AdviceView} advice */
function follows(spec, advice) {
  return settingsOf([advice]).every(
    ([field, value]) => settingAt(spec, field.split(".")) === value,
  );
}

/**
 * What the server advises for the images and the machine, with its reasons.
 * @param {{advice: Api.AdviceView[], spec?: Api.JobSpec, onChange?: (spec: Api.JobSpec) => void}} props with both, each
 *   advice can be followed or undone
 */
export function Advice({ advice, spec, onChange }) {
  if (!advice.length) return null;
  return html`<section class="card advice">
    <h2>Advice</h2>
    ${advice.map((each) => {
      const settings = settingsOf([each]);
      return html`<div key=${each.field}>
        <p>${each.reason}</p>
        ${
          settings.length > 0 &&
          html`<div class="card-head">
          <code>${settings.map(([field, value]) => `${field}: ${shown(value)}`).join(", ")}</code>
          ${spec && onChange && html`<${Choice} advice=${each} spec=${spec} onChange=${onChange} />`}
        </div>`
        }
      </div>`;
    })}
  </section>`;
}

/** @param {{advice: Api.AdviceView, spec: Api.JobSpec, onChange: (spec: Api.JobSpec) => void}} props */
function Choice({ advice, spec, onChange }) {
  return follows(spec, advice)
    ? html`<${Button} label="Undo" onClick=${() => onChange(withoutAdvice(spec, [advice]))} />`
    : html`<${Button} label="Use" onClick=${() => onChange(withAdvice(spec, [advice]))} />`;
}

/** @param {Api.AdviceView[]} advice */
function settingsOf(advice) {
  return advice.flatMap((each) => Object.entries(each.settings));
}
