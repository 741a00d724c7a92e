import { FieldProblem } from "../ui/state.js";
import { html } from "../vendor.js";
import { Field } from "./field.js";
import { accepted, followed, propertiesOf, settingAt, withSetting } from "./spec.js";

/** What most people choose; all else has defaults that fit. */
const ESSENTIAL = [
  ["name"],
  ["dataset"],
  ["method", "name"],
  ["backbone", "name"],
  ["backbone", "image_size"],
  ["train", "epochs"],
  ["train", "batch_size"],
  ["train", "seed"],
  ["resources", "workers"],
  ["resources", "gpus_per_worker"],
];
/** @type {Record<string, string>} */
const TITLES = {
  dar: "DAR: difference alignment",
  sec: "SEC: spherical embedding",
  regularizers: "Other regularizers",
};

/**
 * A form made from the JSON Schema of a job.
 * @param {{schema: Schema, spec: Api.JobSpec, known: import("./submit-page.js").Known, isClone: boolean,
 *   error: Refusal | null, onChange: (spec: Api.JobSpec) => void}} props
 */
export function SpecForm({ schema, spec, known, isClone, error, onChange }) {
  /** @type {import("./field.js").Shared["set"]} */
  const set = (path, value) => onChange(withSetting(spec, path, value));
  const shared = { root: schema, spec, error, set };
  /** @type {Record<string, string[]>} */
  const suggestions = { "backbone.name": known.backbones };
  /** @type {Record<string, string[]>} */
  const choices = {
    dataset: known.datasets.map((each) => each.name),
    "method.name": known.methods,
  };
  const isEssential = (/** @type {string} */ path) =>
    ESSENTIAL.some((each) => each.join(".") === path);
  const sections = Object.entries(schema.properties).filter(([name]) => isSection(schema, name));
  const single = Object.entries(schema.properties).filter(
    ([name]) => !isSection(schema, name) && !isEssential(name),
  );
  return html`<section class="card form-grid">
      ${ESSENTIAL.map((path) => {
        const name = path.join(".");
        return html`<${Field}
          key=${name}
          ...${shared}
          path=${path}
          schema=${schemaAt(schema, path, spec)}
          choices=${choices[name]}
          suggestions=${suggestions[name]}
          disabled=${isClone && name === "dataset"}
        />`;
      })}
    </section>
    ${sections.map(([name, described]) => html`<${Section} key=${name} name=${name} described=${described} shared=${shared} skip=${isEssential} />`)}
    <details class="card">
      <summary>Job</summary>
      <div class="form-grid">${single.map(([name, described]) => html`<${Field} key=${name} ...${shared} path=${[name]} schema=${described} />`)}</div>
    </details>`;
}

/**
 * A section of settings, closed at first unless something in it is set or wrong.
 * @param {{name: string, described: Schema, shared: import("./field.js").Shared, skip: (path: string) => boolean,
 *   path?: string[]}} props
 */
function Section({ name, described, shared, skip, path = [name] }) {
  const { root, spec, error, set } = shared;
  const form = followed(root, described);
  const { section, isNullable } = accepted(root, described);
  const value = settingAt(spec, path);
  // A default that is more than a value, such as that of the holdout, is not in the schema.
  const fallback = "default" in described ? described.default : {};
  const chosen = value === undefined ? fallback : value;
  const isOn = !isNullable || chosen !== null;
  const [on, off] = fallback === null ? [{}, undefined] : [undefined, null];
  const state = chosen === "auto" ? "auto" : isOn ? "on" : "off";
  const properties = form.discriminator
    ? propertiesOf(root, form, value)
    : (section?.properties ?? {});
  const dotted = path.join(".");
  const isWrong = (error?.errors ?? []).some(
    (each) => each.field === dotted || each.field.startsWith(`${dotted}.`),
  );
  const changed = Object.keys(value ?? {}).filter((key) => !skip(`${dotted}.${key}`)).length;
  const entries = Object.entries(properties).filter(([key]) => !skip(`${dotted}.${key}`));
  return html`<details class=${path.length === 1 ? "card" : "nested"} open=${isWrong || (isNullable && isOn && value !== undefined) || undefined}>
    <summary>${TITLES[name] ?? title(name)}${changed > 0 && html`<span class="badge">${changed} set</span>`}${isNullable && html`<span class="muted"> ${state}</span>`}</summary>
    ${form.description && html`<p class="hint">${form.description.split("\n")[0]}</p>`}
    ${
      isNullable &&
      html`<label class="check"><input type="checkbox" checked=${isOn} onChange=${(event) => set(path, event.currentTarget.checked ? on : off)} />Use it</label><${FieldProblem} error=${error} field=${dotted} />`
    }
    ${
      isOn &&
      html`<div class="form-grid">
      ${entries.map(([key, schema]) => {
        const inner = [...path, key];
        if (isNested(root, schema))
          return html`<${Section} key=${key} name=${key} described=${schema} shared=${shared} skip=${skip} path=${inner} />`;
        return html`<${Field} key=${key} ...${shared} path=${inner} schema=${schema} />`;
      })}
    </div>`
    }
  </details>`;
}

/** @param {Schema} root @param {Schema} schema */
function isNested(root, schema) {
  return (
    followed(root, schema).discriminator !== undefined ||
    accepted(root, schema).section !== undefined
  );
}

const isSection = (/** @type {Schema} */ root, /** @type {string} */ name) =>
  isNested(root, root.properties[name]);

/** @param {string} name */
function title(name) {
  const text = name.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** @param {Schema} root @param {string[]} path @param {Api.JobSpec} spec */
function schemaAt(root, path, spec) {
  let schema = root;
  /** @type {string[]} */
  const passed = [];
  for (const name of path) {
    const form = followed(root, schema);
    schema =
      propertiesOf(root, accepted(root, form).section ?? form, settingAt(spec, passed))[name] ?? {};
    passed.push(name);
  }
  return schema;
}
