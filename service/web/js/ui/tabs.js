import { html } from "../vendor.js";
import { link } from "../core/router.js";

/** Views of one thing, as links. @param {{path: string[], tabs: [string, string, Content][], shown: string}} props */
export function Tabs({ path, tabs, shown }) {
  return html`<nav class="tabs" aria-label="Views">
    ${tabs.map(
      ([name, title, badge]) => html`<a
        href=${link([...path, name])}
        aria-current=${name === shown ? "page" : undefined}
        >${title}${badge ? html`<span class="badge">${badge}</span>` : ""}</a
      >`,
    )}
  </nav>`;
}
