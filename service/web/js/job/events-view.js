import { clock, moment } from "../core/format.js";
import { html } from "../vendor.js";

/** What happened to a job, the newest first. @param {JobProps} props */
export function EventsView({ events }) {
  return html`<ol class="events card" reversed>
    ${[...events]
      .reverse()
      .slice(0, 1000)
      .map(
        (event) => html`<li key=${event.seq}>
        <time title=${moment(event.at)}>${clock(event.at)}</time>
        <span class=${`event-type ${event.type}`}>${event.type.replaceAll(/[_-]/g, " ")}</span>
        <span>${event.message}</span>
      </li>`,
      )}
  </ol>`;
}
