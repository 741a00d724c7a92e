import { useResource } from "../core/resource.js";
import { html } from "../vendor.js";
import { Loaded } from "./state.js";

/**
 * A component whose module is loaded when it is first shown.
 * @param {() => Promise<Function>} load
 */
export function later(load) {
  let loaded;
  return function Later(props) {
    const resource = useResource(async () => {
      loaded ??= { component: await load() };
      return loaded;
    }, []);
    return html`<${Loaded} resource=${resource}>${({ component: Component }) => html`<${Component} ...${props} />`}<//>`;
  };
}
