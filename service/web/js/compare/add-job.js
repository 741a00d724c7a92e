import { get } from "../core/api.js";
import { ago } from "../core/format.js";
import { Icon } from "../ui/controls.js";
import { html, useEffect, useState } from "../vendor.js";

/** A search for a job to add. @param {{known: string[], onAdd: (id: string) => void}} props */
export function AddJob({ known, onAdd }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(/** @type {AnyJob[]} */ ([]));
  useEffect(() => {
    const canceled = new AbortController();
    const timer = setTimeout(async () => {
      if (!text.trim()) setFound([]);
      else
        setFound(
          (
            await get("/v1/jobs", { q: text, limit: 8 }, canceled.signal).catch(() => ({
              data: [],
            }))
          ).data,
        );
    }, 200);
    return () => {
      clearTimeout(timer);
      canceled.abort();
    };
  }, [text]);
  const add = (/** @type {string} */ id) => {
    setText("");
    onAdd(id);
  };
  return html`<div class="menu add-job">
    <span class="search"><${Icon} name="search" /><input type="search" aria-label="Add a job" placeholder="Add a job" value=${text} onInput=${(event) => setText(event.currentTarget.value)} /></span>
    ${
      found.length > 0 &&
      html`<div class="menu-panel left">
      ${found
        .filter((job) => !known.includes(job.id))
        .map(
          (job) =>
            html`<button type="button" class="menu-item" onClick=${() => add(job.id)}>${job.name} <span class="muted">${ago(job.created_at)}</span></button>`,
        )}
    </div>`
    }
  </div>`;
}
