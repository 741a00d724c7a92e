import { go, link } from "../core/router.js";
import { may } from "../core/session.js";
import { Button, Icon } from "../ui/controls.js";
import { html } from "../vendor.js";
import { act, ACTIONS } from "./actions.js";

/**
 * What can be done with the selected jobs. An action that fits only some of them is run on those.
 * @param {{jobs: AnyJob[], onClear: () => void, onDone: () => void}} props
 */
export function BulkBar({ jobs, onClear, onDone }) {
  const ids = jobs.map((job) => job.id).join(",");
  const run = async (
    /** @type {import("./actions.js").Action} */ action,
    /** @type {AnyJob[]} */ fitting,
  ) => {
    if (!(await act(action, fitting))) return;
    if (action.name === "delete") onClear();
    onDone();
  };
  return html`<div class="bulk-bar" role="toolbar" aria-label="Selected jobs">
    <strong>${jobs.length} selected</strong>
    <a class="button" href=${link(["compare"], { jobs: ids })} title="Overlay the curves (c)"><${Icon} name="compare" /><span>Compare</span></a>
    ${
      may("submit") &&
      html`${ACTIONS.map((action) => {
        const fitting = jobs.filter(action.applies);
        const label =
          fitting.length === jobs.length ? action.title : `${action.title} ${fitting.length}`;
        return html`<${Button}
          key=${action.name}
          icon=${action.icon}
          label=${label}
          kind=${action.danger ? "danger" : ""}
          disabled=${fitting.length === 0}
          title=${fitting.length ? "" : "No selected job is in a state for this"}
          onClick=${() => run(action, fitting)}
        />`;
      })}
      ${jobs.length === 1 && html`<${Button} icon="copy" label="Clone" onClick=${() => go(["submit"], { clone: ids })} />`}`
    }
    <span class="grow"></span>
    <${Button} icon="close" label="Clear the selection" quiet onClick=${onClear} />
  </div>`;
}
