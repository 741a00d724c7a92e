import { get } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { useCallback, useEffect, useRef, useState } from "../vendor.js";
import { isOne } from "./actions.js";

const PAGE = 100;
/** @type {Api.JobStatus[]} */
const LIVE = ["starting", "running", "pausing", "cancelling"];
const SECONDS = 5;
/** Most ids of a request. */
const MAX_IDS = 100;

/**
 * @typedef {Api.JobSummary} Job
 * @typedef {{key: string, rows: Job[], next: string | undefined, loading: boolean, error: Refusal | null}} State
 */
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
  const key = JSON.stringify(filters);
  const [state, setState] = useState(
    /** @type {State} */ ({ key: "", rows: [], next: undefined, loading: true, error: null }),
  );
  const newest = useRef(state);
  newest.current = state;
  const busy = useRef(false);
  const newestId = useRef(0);

  const load = useCallback(
    /** @param {string} [after] @param {AbortSignal} [signal] */
    async (after, signal) => {
      busy.current = true;
      const requestId = after === undefined ? ++newestId.current : newestId.current;
      if (!signal?.aborted) setState((before) => ({ ...before, loading: true }));
      try {
        const page = await list({ ...filters, after, limit: PAGE }, signal);
        if (requestId !== newestId.current) return; // A later request for the beginning was sent.
        const rows = page.data;
        setState((before) => ({
          key,
          rows: after === undefined ? rows : merged(before.rows, rows),
          next: page.next ?? undefined,
          loading: false,
          error: null,
        }));
      } catch (error) {
        if (!signal?.aborted) setState((before) => ({ ...before, loading: false, error }));
      } finally {
        busy.current = false;
      }
    },
    [key],
  );

  useEffect(() => {
    const canceled = new AbortController();
    void load(undefined, canceled.signal);
    return () => canceled.abort();
  }, [load]);

  const loadMore = useCallback(() => {
    const { next } = newest.current;
    if (next !== undefined && !busy.current) void load(next);
  }, [load]);

  const update = useCallback((/** @type {Job[]} */ jobs) => {
    const known = new Map(jobs.map((job) => [job.id, job]));
    setState((before) => ({ ...before, rows: before.rows.map((row) => known.get(row.id) ?? row) }));
  }, []);

  useEffect(() => {
    const timer = setInterval(async () => {
      const { rows } = newest.current;
      if (document.hidden || !rows.some((row) => isOne(LIVE, row.status))) return;
      const page = await list({ status: LIVE, limit: 200 }).catch(() => null);
      if (page) update(page.data);
    }, SECONDS * 1000);
    return () => clearInterval(timer);
  }, [update]);

  useChangedJobs(
    (ids) => void refresh(ids),
    () => void (newest.current.rows.length > PAGE ? top() : load()),
  );

  /** Add jobs that are new, or that may match now: they stand at the top, unless another order was chosen. */
  async function top() {
    const page = await list({ ...filters, limit: 50 }).catch(() => null);
    if (page && !filters.sort)
      setState((before) => ({ ...before, rows: merged(page.data, before.rows) }));
    else if (page) update(page.data);
  }

  /** @param {Set<string>} all */
  async function refresh(all) {
    const known = new Set(newest.current.rows.map((row) => row.id));
    const shown = [...all].filter((id) => known.has(id));
    if (shown.length < all.size) await top();
    for (let first = 0; first < shown.length; first += MAX_IDS) {
      const some = shown.slice(first, first + MAX_IDS);
      const page = await list({ id: some, limit: MAX_IDS }).catch(() => null);
      if (page) update(page.data);
    }
  }

  const isCurrent = state.key === key;
  return {
    rows: isCurrent ? state.rows : [],
    hasMore: state.next !== undefined,
    loading: state.loading || !isCurrent,
    error: state.error,
    loadMore,
    reload: useCallback(() => void load(undefined), [load]),
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
