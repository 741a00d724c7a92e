import { queryString } from "./api.js";
import { store, useStore } from "./store.js";

/**
 * The view that the address names: `#/jobs/JOB/curves?log=loss` has the path ["jobs", "JOB", "curves"].
 * @typedef {{path: string[], query: URLSearchParams}} Route
 */

const current = store(parse(location.hash));
addEventListener("hashchange", () => current.set(parse(location.hash)));

/** @param {string} hash @returns {Route} */
function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { path: parts.length ? parts : ["jobs"], query: new URLSearchParams(query) };
}

/** A part of the address; as it stands, if it is no valid escape. @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @returns {Route} */
export function useRoute() {
  return useStore(current);
}

/** The address of a view. @param {string[]} path @param {object} [query] */
export function link(path, query) {
  return `#/${path.map(encodeURIComponent).join("/")}${queryString(query)}`;
}

/** Open a view. @param {string[]} path @param {object} [query] */
export function go(path, query) {
  location.hash = link(path, query);
}

/** Change parts of the query in place, without a new entry in the browser's history. @param {object} changes */
export function setQuery(changes) {
  const { path, query } = current.get();
  const before = Object.fromEntries([...query.keys()].map((name) => [name, query.getAll(name)]));
  history.replaceState(null, "", link(path, { ...before, ...changes }));
  current.set(parse(location.hash));
}
