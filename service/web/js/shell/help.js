import { helpShown } from "../core/keys.js";
import { useStore } from "../core/store.js";
import { Dialog } from "../ui/dialog.js";
import { html } from "../vendor.js";
import { VIEWS } from "./views.js";

const SHORTCUTS = [
  ["?", "This list"],
  ["/", "Search"],
  ...VIEWS.filter((view) => view.path !== "compare").map((view) => [
    `g ${view.path[0]}`,
    view.title,
  ]),
  ["j, k", "Next and previous row"],
  ["Enter", "Open the row"],
  ["x", "Select the row"],
  ["c", "Compare the selected jobs"],
  ["Esc", "Close, or clear the selection"],
  ["z", "Show all steps of the curves again"],
];

/** The keyboard shortcuts. */
export function Help() {
  if (!useStore(helpShown)) return null;
  return html`<${Dialog} title="Keyboard shortcuts" onClose=${() => helpShown.set(false)}>
    <dl class="shortcuts">
      ${SHORTCUTS.map(
        ([keys, text]) => html`<div>
          <dt>${keys.split(/(, | )/).map((part) => (part.trim() && part !== ", " ? html`<kbd>${part}</kbd>` : " "))}</dt>
          <dd>${text}</dd>
        </div>`,
      )}
    </dl>
  <//>`;
}
