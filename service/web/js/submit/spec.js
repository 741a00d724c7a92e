// Specs as nested settings, and the JSON Schema that describes them.

/** A schema with its reference followed. @param {Schema} root @param {Schema} schema @returns {Schema} */
export function followed(root, schema) {
  const name = schema.$ref?.replace("#/$defs/", "");
  return name ? { ...root.$defs[name], ...schema, $ref: undefined } : schema;
}

/**
 * What a field accepts: `options` if these are all, `section` if it has settings of its own.
 * @param {Schema} root
 * @param {Schema} schema
 */
export function accepted(root, schema) {
  const alternatives = /** @type {Schema[]} */ (schema.anyOf ?? [schema]);
  const forms = alternatives.map((form) => followed(root, form));
  const isNullable = forms.some((form) => form.type === "null");
  const isAuto = forms.some((form) => form.const === "auto");
  const rest = forms.filter((form) => form.type !== "null" && form.const !== "auto");
  const section =
    rest.length === 1 && rest[0].type === "object" && rest[0].properties ? rest[0] : undefined;
  const values = rest.map(valuesOf);
  const options = rest.length && values.every(Boolean) ? values.flat() : undefined;
  return { options, section, isNullable, isAuto, kinds: rest.map((form) => form.type) };
}

/** All values that a form accepts, if it names them. @param {Schema} form @returns {unknown[] | undefined} */
function valuesOf(form) {
  if (form.const !== undefined) return [form.const];
  return form.enum ?? (form.type === "boolean" ? [true, false] : undefined);
}

/**
 * The settings of a section: of the method, those of the chosen one.
 * @param {Schema} root @param {Schema} schema @param {any} value
 * @returns {Record<string, Schema>}
 */
export function propertiesOf(root, schema, value) {
  const mapping = schema.discriminator?.mapping;
  if (!mapping) return schema.properties ?? {};
  const name = value?.name ?? "simclr";
  return mapping[name] ? followed(root, { $ref: mapping[name] }).properties : {};
}

/**
 * A spec with one setting changed; undefined removes it, so that its default counts.
 * @param {any} spec @param {string[]} path @param {unknown} value
 */
export function withSetting(spec, path, value) {
  const [name, ...rest] = path;
  const next = { ...spec };
  const changed = rest.length ? withSetting(spec?.[name] ?? {}, rest, value) : value;
  const isEmpty =
    rest.length > 0 && Object.keys(changed).length === 0 && spec?.[name] === undefined;
  if (changed === undefined || isEmpty) delete next[name];
  else next[name] = changed;
  return next;
}

/** The setting at a path. @param {any} spec @param {string[]} path */
export function settingAt(spec, path) {
  return path.reduce((value, name) => value?.[name], spec);
}

/** All fields of a spec with their schemas, by their dotted names. @param {Schema} root @param {object} spec */
export function fieldsOf(root, spec) {
  /** @type {Map<string, Schema>} */
  const fields = new Map();
  const visit = (
    /** @type {Record<string, Schema>} */ properties,
    /** @type {string[]} */ path,
  ) => {
    for (const [name, schema] of Object.entries(properties)) {
      const here = [...path, name];
      const form = followed(root, schema);
      const { section, isNullable } = accepted(root, schema);
      fields.set(here.join("."), schema);
      const value = settingAt(spec, here);
      if (form.discriminator) visit(propertiesOf(root, form, value), here);
      else if (section && (!isNullable || value)) visit(section.properties, here);
    }
  };
  visit(root.properties, []);
  return fields;
}

/**
 * The changes that turn one spec into another; what is removed gets its default.
 * @param {Record<string, any>} before @param {Record<string, any>} after @param {Schema} schema
 */
export function changesOf(before, after, schema, root = schema) {
  /** @type {Record<string, any>} */
  const changes = {};
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const [old, next] = [before[name], after[name]];
    if (JSON.stringify(old) === JSON.stringify(next)) continue;
    const described = followed(root, schema?.properties?.[name] ?? {});
    const areSections = [old, next].every(
      (each) => each !== null && typeof each === "object" && !Array.isArray(each),
    );
    // Another method has other settings: it is replaced as a whole.
    const isReplaced = described.discriminator && old?.name !== next?.name;
    if (areSections && !isReplaced)
      changes[name] = changesOf(old, next, accepted(root, described).section ?? described, root);
    else if (next === undefined) changes[name] = described.default ?? null;
    else changes[name] = next;
  }
  return changes;
}
