import { get, useResource } from "../core/api.js";
import { setQuery } from "../core/router.js";
import { fieldsOf } from "../submit/spec.js";
import { Icon, Segmented } from "../ui/controls.js";
import { html, useMemo } from "../vendor.js";

/**
 * The settings of a spec by their dotted names; lists are values.
 * @param {unknown} spec
 * @param {Map<string, unknown>} found
 */
export function flat(spec, prefix = "", found = new Map()) {
  for (const [name, value] of Object.entries(spec ?? {})) {
    const path = prefix ? `${prefix}.${name}` : name;
    const isSection = value !== null && typeof value === "object" && !Array.isArray(value);
    if (isSection && Object.keys(value).length) flat(value, path, found);
    else found.set(path, value);
  }
  return found;
}

/** A setting's value as it is written in YAML. @param {unknown} value */
export function shown(value) {
  if (value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/**
 * The names of the settings in which these specs differ. Of a section that only some of them have, such as `dar`, those
 * that a person has set are enough.
 * @param {unknown[]} specs as resolved
 * @param {unknown[]} sent as they were submitted
 */
export function differing(specs, sent) {
  const tables = specs.map((spec) => flat(spec));
  const asked = new Set(sent.flatMap((spec) => [...flat(spec).keys()]));
  const names = new Set(tables.flatMap((table) => [...table.keys()]));
  const isMissing = (/** @type {string} */ name) =>
    tables.some((table) => !table.has(name) && table.has(name.split(".")[0]));
  return [...names]
    .sort()
    .filter((name) => new Set(tables.map((table) => JSON.stringify(table.get(name)))).size > 1)
    .filter((name) => !isMissing(name) || asked.has(name));
}

const ORIGINS = { "": "All", set: "Set by you", auto: "Automatic" };

/** @typedef {{name: string, value: unknown, origin: string}} Setting */
/** Every setting as it was resolved, and which of them were chosen by "auto". @param {JobProps} props */
export function SettingsView({ job, query }) {
  const text = query.get("find") ?? "";
  const sent = flat(job.spec);
  const { data: schema } = useResource(
    async (signal) => (await get("/v1/catalog/methods", {}, signal)).job_schema,
    [],
  );
  const fields = useMemo(
    () => (schema ? fieldsOf(schema, job.resolved) : new Map()),
    [schema, job.id],
  );
  const rows = [...flat(job.resolved)].map(([name, value]) => ({
    name,
    value,
    origin: originOf(sent, fields, name),
  }));
  const only = query.get("only");
  const matching = rows.filter((row) => row.name.includes(text) && (!only || row.origin === only));
  const sections = Map.groupBy(matching, sectionOf);
  return html`<div class="toolbar">
      <span class="search"><${Icon} name="search" /><input type="search" aria-label="Search settings" placeholder="Search settings" value=${text} onInput=${(event) => setQuery({ find: event.currentTarget.value })} /></span>
      <${Segmented} label="Which settings" options=${ORIGINS} value=${only ?? ""} onChange=${(origin) => setQuery({ only: origin })} />
    </div>
    <div class="settings">
      ${[...sections].map(
        ([section, entries]) => html`<section class="card">
          <h2>${section}</h2>
          <dl>${entries.map((row) => html`<div class=${row.origin}><dt>${row.name.startsWith(`${section}.`) ? row.name.slice(section.length + 1) : row.name}</dt><dd>${shown(row.value)}${row.origin !== "default" && html`<span class="origin">${row.origin}</span>`}</dd></div>`)}</dl>
        </section>`,
      )}
    </div>
    ${matching.length === 0 && html`<p class="placeholder muted">No setting matches.</p>`}`;
}

/**
 * Who chose a value: the person, "auto", or the default.
 * @param {Map<string, unknown>} sent @param {Map<string, Schema>} fields @param {string} name
 */
function originOf(sent, fields, name) {
  const given = sent.get(name) ?? (sent.has(name) ? null : fields.get(name)?.default);
  if (given === "auto") return "auto";
  return sent.has(name) ? "set" : "default";
}

const sectionOf = (/** @type {Setting} */ row) =>
  row.name.includes(".") ? row.name.split(".")[0] : "job";
