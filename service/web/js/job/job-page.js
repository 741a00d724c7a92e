import { get, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { isFinal } from "../jobs/actions.js";
import { later, Loaded } from "../ui/state.js";
import { link } from "../core/router.js";
import { html, useEffect, useRef } from "../vendor.js";
import { ArtifactsView } from "./artifacts-view.js";
import { AttemptsView } from "./attempts-view.js";
import { CheckpointsView } from "./checkpoints-view.js";
import { CurvesView } from "./curves-view.js";
import { EvaluationsView } from "./evaluations-view.js";
import { EventsView } from "./events-view.js";
import { JobHead } from "./job-head.js";
import { LogView } from "./log-view.js";
import { SettingsView } from "./settings.js";
import { Verdict } from "./verdict.js";

const PicturesView = later(async () => (await import("../pictures/pictures-view.js")).PicturesView);

/**
 * The views of a job, in the order of its tabs.
 * @type {{name: string, title: string, component: import("preact").ComponentType<JobProps>}[]}
 */
const VIEWS = [
  { name: "curves", title: "Curves", component: CurvesView },
  { name: "evaluations", title: "Evaluations", component: EvaluationsView },
  { name: "pictures", title: "Pictures", component: PicturesView },
  { name: "log", title: "Log", component: LogView },
  { name: "settings", title: "Settings", component: SettingsView },
  { name: "checkpoints", title: "Checkpoints", component: CheckpointsView },
  { name: "files", title: "Files", component: ArtifactsView },
  { name: "attempts", title: "Attempts", component: AttemptsView },
  { name: "events", title: "Events", component: EventsView },
];

/** One job. @param {{id: string, view: string, query: URLSearchParams}} props */
export function JobPage({ id, view, query }) {
  const job = useJob(id);
  const events = useJobEvents(id);
  const { name, component: Shown } = VIEWS.find((each) => each.name === view) ?? VIEWS[0];
  return html`<div class="page job">
    <${Loaded} resource=${job} what="the job">
      ${(
        data,
      ) => html`<${JobHead} job=${data} onChange=${(changed) => job.update(() => changed)} reload=${job.reload} />
        <${Verdict} job=${data} events=${events} />
        <nav class="tabs" aria-label="Views">
          ${VIEWS.map((each) => html`<a href=${link(["jobs", id, each.name])} aria-current=${each.name === name ? "page" : undefined}>${each.title}${each.name === "attempts" && data.attempt > 1 && html`<span class="badge">${data.attempt}</span>`}</a>`)}
        </nav>
        <${Shown} job=${data} events=${events} query=${query} />`}
    <//>
  </div>`;
}

/** The job, kept current by its events, and while it runs every few seconds. @param {string} id */
function useJob(id) {
  const resource = useResource(
    (signal) => get(`/v1/jobs/${encodeURIComponent(id)}`, {}, signal),
    [id],
    { every: pace },
  );
  const { data, reload } = resource;
  useEvents((event) => event.job_id === id && reload(), reload);
  useEffect(() => {
    if (data) document.title = `${data.name} · DASL`;
  }, [data?.name]);
  return resource;
}

/** Seconds between two requests of a job. @param {Api.JobView | undefined} job */
function pace(job) {
  if (!job || isFinal(job)) return 0;
  return job.status === "queued" || job.status === "paused" ? 10 : 3;
}

/** All events of the job, the newest last; new ones are added as they happen. @param {string} id */
function useJobEvents(id) {
  const known = useRef(/** @type {Api.EventView[]} */ ([]));
  const { data, reload } = useResource(
    async (signal) => {
      let more = true;
      while (more) {
        const after = known.current.at(-1)?.seq ?? 0;
        const page = await get(
          `/v1/jobs/${encodeURIComponent(id)}/events`,
          { after, limit: 1000 },
          signal,
        );
        known.current = [...known.current, ...page.data];
        more = page.has_more;
      }
      return known.current;
    },
    [id],
  );
  useEvents((event) => event.job_id === id && reload(), reload);
  return data ?? known.current;
}
