import { FieldProblem } from "../ui/state.js";
import { shown } from "../job/settings.js";
import { html, useEffect, useState } from "../vendor.js";
import { accepted, settingAt } from "./spec.js";

/**
 * @typedef {{root: Schema, spec: Api.JobSpec, error: Refusal | null, set: (path: string[], value: unknown) => void}} Shared
 *   by all fields of a form
 * @typedef {{id: string, disabled?: boolean, "aria-invalid"?: "true", "aria-describedby": string}} Attributes
 */
/**
 * One setting: a choice, or a text that is read as a number, a list or "auto". Empty means the default.
 * @param {Shared & {path: string[], schema: Schema, choices?: string[], suggestions?: string[], disabled?: boolean}} props
 */
export function Field({ root, spec, path, schema, error, set, choices, suggestions, disabled }) {
  const dotted = path.join(".");
  const value = settingAt(spec, path);
  const { options, isNullable, isAuto, kinds } = accepted(root, schema);
  const closed =
    choices ??
    (options && [...(isAuto ? ["auto"] : []), ...options, ...(isNullable ? [null] : [])]);
  const isWrong = (error?.errors ?? []).some((each) => each.field === dotted);
  const id = `setting-${dotted}`;
  /** @type {Attributes} */
  const shared = {
    id,
    disabled,
    "aria-invalid": isWrong ? "true" : undefined,
    "aria-describedby": `${id}-about`,
  };
  const isFree = choices !== undefined && path.length === 1;
  return html`<div class=${`field ${value === undefined ? "" : "set"}`}>
    <label for=${id}>${titleOf(path)}</label>
    ${
      closed
        ? html`<${Choice} shared=${shared} values=${closed} value=${value} fallback=${schema.default} needed=${isFree} onChange=${(next) => set(path, next)} />`
        : html`<${Text} shared=${shared} value=${value} fallback=${schema.default} kinds=${kinds} suggestions=${suggestions} onChange=${(next) => set(path, next)} />`
    }
    <p class="hint" id=${`${id}-about`} title=${schema.description}>${code(brief(schema.description))}</p>
    <${FieldProblem} error=${error} field=${dotted} />
  </div>`;
}

/**
 * @param {{shared: Attributes, values: unknown[], value: unknown, fallback: unknown, needed: boolean,
 *   onChange: (value: unknown) => void}} props
 */
function Choice({ shared, values, value, fallback, needed, onChange }) {
  const texts = values.map((each) => JSON.stringify(each));
  const chosen = value === undefined ? "" : JSON.stringify(value);
  if (chosen && !texts.includes(chosen)) texts.push(chosen);
  return html`<select ...${shared} value=${chosen} onChange=${(event) => onChange(event.currentTarget.value ? JSON.parse(event.currentTarget.value) : undefined)}>
    ${!needed && html`<option value="">${fallback === undefined ? "default" : `default: ${shown(fallback)}`}</option>`}
    ${texts.map((text) => html`<option value=${text} selected=${text === chosen}>${shown(JSON.parse(text)).replace(/^null$/, "none")}</option>`)}
  </select>`;
}

/**
 * @param {{shared: Attributes, value: unknown, fallback: unknown, kinds: string[], suggestions?: string[],
 *   onChange: (value: unknown) => void}} props
 */
function Text({ shared, value, fallback, kinds, suggestions, onChange }) {
  const [text, setText] = useState(written(value));
  // What is typed stays as it is typed; a value that comes from elsewhere replaces it.
  useEffect(() => {
    if (JSON.stringify(parsed(text, kinds)) !== JSON.stringify(value)) setText(written(value));
  }, [JSON.stringify(value)]);
  const typed = (/** @type {ChangeOf<HTMLInputElement>} */ event) => {
    setText(event.currentTarget.value);
    onChange(parsed(event.currentTarget.value, kinds));
  };
  const list = suggestions && `${shared.id}-list`;
  return html`<input
      ...${shared}
      type="text"
      inputmode=${kinds.every((kind) => kind === "integer") ? "numeric" : undefined}
      list=${list}
      value=${text}
      placeholder=${fallback === undefined ? "" : shown(fallback)}
      spellcheck=${false}
      onInput=${typed}
    />
    ${suggestions && html`<datalist id=${list}>${suggestions.map((each) => html`<option value=${each}></option>`)}</datalist>`}`;
}

/** @param {unknown} value */
function written(value) {
  return value === undefined ? "" : shown(value);
}

/**
 * The value that a text means; what is no number, list or mapping stays a text, and the server says what is wrong.
 * @param {string} text
 * @param {string[]} kinds
 */
function parsed(text, kinds) {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  if (kinds.length > 0 && kinds.every((kind) => kind === "string") && trimmed !== "null")
    return text;
  try {
    return JSON.parse(trimmed);
  } catch {
    return text;
  }
}

/** @param {string[]} path */
function titleOf(path) {
  if (path.at(-1) === "name" && path.length === 2) return path[0];
  return path
    .slice(path.length > 1 ? 1 : 0)
    .join(" ")
    .replaceAll("_", " ");
}

/** Text with what stands between backticks as code. @param {string} text */
function code(text) {
  return text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

function brief(text = "") {
  const [first] = text.split(/(?<=\.)\s/);
  return first;
}
