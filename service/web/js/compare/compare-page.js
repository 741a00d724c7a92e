import { get, useResource } from "../core/api.js";
import { ago } from "../core/format.js";
import { link, setQuery } from "../core/router.js";
import { COLORS } from "../core/theme.js";
import { isFinal } from "../jobs/actions.js";
import { Button, Icon, Select } from "../ui/controls.js";
import { Empty, Failure, Loading } from "../ui/state.js";
import { StatusChip, VerdictChip } from "../ui/values.js";
import { FigureTable, SettingTable } from "./tables.js";
import { distinct, groupings, groupsOf } from "./groups.js";
import { Overlay } from "./overlay.js";
import { html, useEffect, useState } from "../vendor.js";

/** Jobs of one comparison; more than eight only make sense in groups. */
const MOST = 16;

/**
 * `#/compare?jobs=A,B&by=study`: curves over one another or as means of groups, figures, and the settings that differ.
 * @param {ViewProps} props
 */
export function ComparePage({ query }) {
  const wished = (query.get("jobs") ?? "").split(",").filter(Boolean);
  const ids = wished.slice(0, MOST);
  const choose = (/** @type {string[]} */ next) => setQuery({ jobs: next.join(",") });
  const { data, error, reload } = useResource(
    async (signal) => ({
      ids,
      jobs: await Promise.all(
        ids.map((id) => get(`/v1/jobs/${encodeURIComponent(id)}`, {}, signal)),
      ),
    }),
    [ids.join(",")],
    { every: 10 },
  );
  const ways = groupings(data?.jobs ?? []);
  const by =
    ways.find((way) => way === (query.get("by") ?? (ids.length > COLORS.length ? ways[0] : ""))) ??
    "";
  const groups = groupsOf(distinct(data?.jobs ?? []), by);
  const jobs = groups.flatMap((group) => group.jobs.map((job) => ({ ...job, color: group.color })));
  return html`<div class="page compare">
    <div class="page-head"><h1>Compare</h1>${ids.length < MOST && html`<${AddJob} known=${ids} onAdd=${(/** @type {string} */ id) => choose([...ids, id])} />`}
      ${
        ways.length > 0 &&
        html`<label class="inline muted">Group by <${Select} options=${[["", "nothing"], ...ways.map((way) => [way, way])]} value=${by} onChange=${(way) => setQuery({ by: way })} /></label>`
      }
    </div>
    ${wished.length > MOST && html`<p class="muted">The first ${MOST} of ${wished.length} jobs.</p>`}
    ${error && html`<${Failure} error=${error} onRetry=${reload} />`}
    ${ids.length === 0 && html`<${Empty} title="No jobs chosen"><p>Select jobs in the <a href=${link(["jobs"])}>list</a>, or search for one above.</p><//>`}
    ${ids.length > 0 && !data && !error && html`<${Loading} what="jobs" />`}
    ${
      jobs.length > 0 &&
      html`<ul class="compared">
        ${jobs.map(
          (job) => html`<li key=${job.id} style=${{ "--mark": `var(${job.color})` }}>
            <a href=${link(["jobs", job.id])}>${job.name}</a><${StatusChip} status=${job.status} /><${VerdictChip} verdict=${job.verdict} />
            <${Button} icon="close" label=${`Remove ${job.name}`} quiet onClick=${() => choose(ids.filter((id) => id !== job.id))} />
          </li>`,
        )}
      </ul>
      <div class="report"><${FigureTable} groups=${groups} /><${SettingTable} jobs=${jobs} /></div>
      <${Overlay} key=${`${ids} ${by}`} groups=${groups} live=${jobs.some((job) => !isFinal(job))} query=${query} />`
    }
  </div>`;
}

/** A search for a job to add. @param {{known: string[], onAdd: (id: string) => void}} props */
function AddJob({ known, onAdd }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(/** @type {AnyJob[]} */ ([]));
  useEffect(() => {
    const canceled = new AbortController();
    const search = async () =>
      text.trim() ? (await get("/v1/jobs", { q: text, limit: 8 }, canceled.signal)).data : [];
    const timer = setTimeout(() => search().then(setFound, () => setFound([])), 200);
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
