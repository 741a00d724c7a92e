import { get } from "../core/api.js";
import { useResource } from "../core/resource.js";
import { html } from "../vendor.js";
import { Loaded } from "./state.js";

/**
 * A component whose module is loaded when it is first shown.
 * @template {object} Props
 * @param {() => Promise<import("preact").ComponentType<Props>>} load
 */
export function later(load) {
  /** @type {{component: import("preact").ComponentType<Props>} | undefined} */
  let loaded;
  return function Later(/** @type {Props} */ props) {
    const resource = useResource(async () => {
      try {
        loaded ??= { component: await load() };
      } catch (error) {
        // The browser only says that a file was not loaded. If the service is away, this says so, and it is tried again.
        await get("/livez");
        throw error;
      }
      return loaded;
    }, []);
    return html`<${Loaded} resource=${resource}>${({ component: Component }) => html`<${Component} ...${props} />`}<//>`;
  };
}
