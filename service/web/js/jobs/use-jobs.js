import { get, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { complain } from "../core/toasts.js";
import { useRef } from "../vendor.js";
import { isOne } from "./actions.js";

const PAGE = 100;
/** @type {Api.JobStatus[]} */
const LIVE = ["starting", "running", "pausing", "cancelling"];
const SECONDS = 5;
/** Most ids of a request. */
const MAX_IDS = 100;

/** @typedef {Api.JobSummary} Job */
/**
 * @param {Api.Parameters<"GET", "/v1/jobs">} query
 * @param {AbortSignal} [signal]
 * @returns {Promise<Api.Page_JobSummary_>}
 */
const list = (query, signal) =>
  /** @type {any} */ (get("/v1/jobs", { ...query, summary: true }, signal));

/**
 * The jobs that match, page by page as they are scrolled to, and kept current: by events, and while some run by asking
 * for their progress.
 * @param {ReturnType<typeof import("./filters.js").filtersOf>} filters
 */
export function useJobs(filters) {
  const { data, error, reload, update } = useResource(
    (signal) => list({ ...filters, limit: PAGE }, signal),
    [JSON.stringify(filters)],
  );
  const newest = useRef(data);
  newest.current = data;
  const isLoading = useRef(false);

  const loadMore = async () => {
    const { next } = newest.current ?? {};
    if (!next || isLoading.current) return;
    isLoading.current = true;
    const page = await list({ ...filters, after: next, limit: PAGE }).catch(complain);
    isLoading.current = false;
    // Unless the list was loaded again meanwhile.
    if (page && newest.current?.next === next)
      update((before) => before && { ...page, data: merged(before.data, page.data) });
  };

  const replace = (/** @type {Job[]} */ jobs) => {
    const known = new Map(jobs.map((job) => [job.id, job]));
    update(
      (before) => before && { ...before, data: before.data.map((row) => known.get(row.id) ?? row) },
    );
  };

  const poll = async (/** @type {AbortSignal} */ signal) => {
    if (document.hidden || !newest.current?.data.some((row) => isOne(LIVE, row.status))) return;
    replace((await list({ status: LIVE, limit: 200 }, signal)).data);
  };
  useResource(poll, [], { every: SECONDS });

  useChangedJobs(
    (ids) => void refresh(ids),
    () => void ((newest.current?.data.length ?? 0) > PAGE ? top() : reload()),
  );

  /** Add jobs that are new, or that may match now: they stand at the top, unless another order was chosen. */
  async function top() {
    const page = await list({ ...filters, limit: 50 }).catch(() => null);
    if (page && !filters.sort)
      update((before) => before && { ...before, data: merged(page.data, before.data) });
    else if (page) replace(page.data);
  }

  /** @param {Set<string>} all */
  async function refresh(all) {
    const known = new Set(newest.current?.data.map((row) => row.id));
    const shown = [...all].filter((id) => known.has(id));
    if (shown.length < all.size) await top();
    for (let first = 0; first < shown.length; first += MAX_IDS) {
      const some = shown.slice(first, first + MAX_IDS);
      const page = await list({ id: some, limit: MAX_IDS }).catch(() => null);
      if (page) replace(page.data);
    }
  }

  return {
    rows: data?.data ?? [],
    hasMore: Boolean(data?.next),
    loading: !data && !error,
    error,
    loadMore,
    reload,
  };
}

/**
 * Call a function with the ids of the jobs whose state has changed, at most twice a second; another when the stream opens.
 * @param {(ids: Set<string>) => void} changed
 * @param {() => void} opened
 */
function useChangedJobs(changed, opened) {
  const waiting = useRef({ ids: /** @type {Set<string>} */ (new Set()), timer: 0 });
  useEvents((event) => {
    if (!event.job_id || !["status", "evaluation", "verdict", "collapse"].includes(event.type))
      return;
    const { ids, timer } = waiting.current;
    ids.add(event.job_id);
    if (timer) return;
    waiting.current.timer = setTimeout(() => {
      waiting.current = { ids: new Set(), timer: 0 };
      changed(ids);
    }, 500);
  }, opened);
}

/** The rows of both, without repetitions. @param {Job[]} first @param {Job[]} then */
function merged(first, then) {
  const known = new Set(first.map((row) => row.id));
  return [...first, ...then.filter((row) => !known.has(row.id))];
}
