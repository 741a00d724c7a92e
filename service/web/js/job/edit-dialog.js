import { patch } from "../core/api.js";
import { say } from "../core/toasts.js";
import { isFinal } from "../jobs/actions.js";
import { Button } from "../ui/controls.js";
import { Dialog } from "../ui/dialog.js";
import { Failure, useRefusal } from "../ui/state.js";
import { html, useState } from "../vendor.js";

/**
 * Name, tags, priority and time limit of a job.
 * @param {{job: Api.JobView, onClose: () => void, onSaved: (job: Api.JobView) => void}} props
 */
export function EditDialog({ job, onClose, onSaved }) {
  const hours = job.max_hours ?? job.resolved.resources?.max_hours ?? "";
  const [fields, setFields] = useState({
    name: job.name,
    tags: Object.entries(job.tags)
      .map(([key, value]) => `${key}: ${value}`)
      .join("\n"),
    priority: String(job.priority),
    hours: String(hours),
  });
  const { refusal, attempt } = useRefusal();
  const set =
    (/** @type {keyof typeof fields} */ name) =>
    (/** @type {ChangeOf<HTMLInputElement | HTMLTextAreaElement>} */ event) =>
      setFields({ ...fields, [name]: event.currentTarget.value });
  const save = () => {
    /** @type {Api.JobPatch} */
    const changes = {
      name: fields.name,
      tags: tagsOf(fields.tags),
      priority: Number(fields.priority),
    };
    if (!isFinal(job) && fields.hours !== String(hours))
      changes.resources = { max_hours: Number(fields.hours) };
    return attempt(async () => {
      onSaved(await patch(`/v1/jobs/${job.id}`, changes));
      say("Saved.");
      onClose();
    });
  };
  return html`<${Dialog}
    title="Edit the job"
    onClose=${onClose}
    footer=${html`<${Button} label="Keep as it is" onClick=${onClose} /><${Button} label="Save" kind="primary" onClick=${save} />`}
  >
    <div class="form">
      <label>Name<input value=${fields.name} onInput=${set("name")} /></label>
      <label>Tags, one a line, as <code>key: value</code><textarea rows="3" value=${fields.tags} onInput=${set("tags")}></textarea></label>
      <label>Priority, larger is earlier<input type="number" min="-1000" max="1000" value=${fields.priority} onInput=${set("priority")} /></label>
      ${!isFinal(job) && html`<label>Time limit in hours, of all attempts together<input type="number" min="0" step="any" value=${fields.hours} onInput=${set("hours")} /></label>`}
      ${refusal && html`<${Failure} error=${refusal} />`}
    </div>
  <//>`;
}

/** @param {string} text */
function tagsOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => {
      const [key, ...value] = line.split(":");
      return [key.trim(), value.join(":").trim()];
    }),
  );
}
