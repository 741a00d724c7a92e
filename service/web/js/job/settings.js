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
