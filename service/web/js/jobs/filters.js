import { get, useResource } from "../core/api.js";
import { setQuery } from "../core/router.js";
import { Button, Icon, Select } from "../ui/controls.js";
import { html, useEffect, useState } from "../vendor.js";

/** @type {Record<string, Api.JobStatus[]>} */
const STATES = {
  Running: ["starting", "running", "pausing", "cancelling", "retry_wait"],
  Queued: ["queued"],
  Paused: ["paused"],
  Succeeded: ["succeeded"],
  Failed: ["failed"],
  Cancelled: ["cancelled"],
};

/** The query of `GET /v1/jobs` that the address stands for. @param {URLSearchParams} query */
export function filtersOf(query) {
  const one = (/** @type {string} */ name) => query.get(name) || undefined;
  return {
    status: /** @type {Api.JobStatus[]} */ (query.getAll("status")),
    q: one("q"),
    method: one("method"),
    dataset: one("dataset"),
    tag: one("tag"),
    experiment: one("experiment"),
    sort: one("sort"),
  };
}

/** Search, states, method, data set and tag. @param {{filters: ReturnType<typeof filtersOf>}} props */
export function Filters({ filters }) {
  return html`<div class="filters" role="search">
    <${Search} text=${filters.q} />
    <div class="chips" role="group" aria-label="State">
      ${Object.entries(STATES).map(([title, states]) => {
        const isOn = states.every((each) => filters.status.includes(each));
        const others = filters.status.filter((each) => !states.includes(each));
        return html`<button
          type="button"
          class="filter-chip"
          aria-pressed=${isOn}
          onClick=${() => setQuery({ status: isOn ? others : [...others, ...states] })}
        >${title}</button>`;
      })}
    </div>
    <${Choice} name="method" title="Any method" value=${filters.method} load=${methods} />
    <${Choice} name="dataset" title="Any data set" value=${filters.dataset} load=${datasets} />
    ${
      /** @type {const} */ (["tag", "experiment"])
        .filter((name) => filters[name])
        .map(
          (name) =>
            html`<span class="tag on">${name === "tag" ? filters.tag : "one experiment"}<${Button} icon="close" label=${`Remove the filter by ${name}`} quiet onClick=${() => setQuery({ [name]: null })} /></span>`,
        )
    }
  </div>`;
}

/** @param {{text?: string}} props */
function Search({ text = "" }) {
  const [typed, setTyped] = useState(text);
  useEffect(() => setTyped(text), [text]);
  useEffect(() => {
    const timer = setTimeout(() => typed !== text && setQuery({ q: typed }), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  return html`<span class="search">
    <${Icon} name="search" />
    <input
      type="search"
      aria-label="Search jobs"
      placeholder="Search"
      value=${typed}
      onInput=${(event) => setTyped(event.currentTarget.value)}
    />
    <kbd class="wide-only">/</kbd>
  </span>`;
}

/** @param {{name: string, title: string, value?: string, load: (signal: AbortSignal) => Promise<string[]>}} props */
function Choice({ name, title, value, load }) {
  const { data } = useResource(load, []);
  const names = [...new Set([...(data ?? []), ...(value ? [value] : [])])];
  return html`<${Select} label=${title} options=${[["", title], ...names.map((each) => [each, each])]} value=${value ?? ""} onChange=${(chosen) => setQuery({ [name]: chosen })} />`;
}

/** @param {AbortSignal} signal */
async function datasets(signal) {
  const page = await get("/v1/datasets", { limit: 200 }, signal);
  return page.data.map((dataset) => dataset.name).sort();
}

// The schemas that come with the names are large: they are asked for once.
/** @type {Promise<Record<string, any>> | undefined} */
let known;
async function methods() {
  known ??= get("/v1/catalog/methods");
  const catalog = await known.catch((error) => {
    known = undefined;
    throw error;
  });
  return catalog.data.map((/** @type {{name: string}} */ method) => method.name).sort();
}
