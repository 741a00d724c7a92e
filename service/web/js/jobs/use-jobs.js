import { get } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { useCallback, useEffect, useRef, useState } from "../vendor.js";

const PAGE = 100;
const LIVE = ["starting", "running", "pausing", "cancelling"];
const SECONDS = 5;
/** Most ids of a request. */
const MAX_IDS = 100;

/**
 * The jobs that match, page by page as they are scrolled to, and kept current: by events, and while some run by asking
 * for their progress.
 * @param {object} filters a query of `GET /v1/jobs`
 */
export function useJobs(filters) {
  const key = JSON.stringify(filters);
  const [state, setState] = useState({ key: "", rows: [], next: undefined, loading: true, error: null });
  const newest = useRef(state);
  newest.current = state;
  const busy = useRef(false);
  const turn = useRef(0);

  const load = useCallback(
    async (after, signal) => {
      busy.current = true;
      const own = after === undefined ? ++turn.current : turn.current;
      if (!signal?.aborted) setState((before) => ({ ...before, loading: true }));
      try {
        const page = await get("/v1/jobs", { ...filters, after, limit: PAGE, summary: true }, signal);
        if (own !== turn.current) return; // A later request for the beginning was sent.
        const rows = page.data;
        setState((before) => ({
          key,
          rows: after === undefined ? rows : merged(before.rows, rows),
          next: page.has_more ? page.next : undefined,
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

  const update = useCallback((jobs) => {
    const known = new Map(jobs.map((job) => [job.id, job]));
    setState((before) => ({ ...before, rows: before.rows.map((row) => known.get(row.id) ?? row) }));
  }, []);

  useEffect(() => {
    const timer = setInterval(async () => {
      const { rows } = newest.current;
      if (document.hidden || !rows.some((row) => LIVE.includes(row.status))) return;
      const page = await get("/v1/jobs", { status: LIVE, limit: 200, summary: true }).catch(() => null);
      if (page) update(page.data);
    }, SECONDS * 1000);
    return () => clearInterval(timer);
  }, [update]);

  useChangedJobs((ids) => void refresh(ids), () => void (newest.current.rows.length > PAGE ? top() : load()));

  /** Add jobs that are new, or that may match now: they stand at the top, unless another order was chosen. */
  async function top() {
    const page = await get("/v1/jobs", { ...filters, limit: 50, summary: true }).catch(() => null);
    if (page && !filters.sort) setState((before) => ({ ...before, rows: merged(page.data, before.rows) }));
    else if (page) update(page.data);
  }

  async function refresh(all) {
    const known = new Set(newest.current.rows.map((row) => row.id));
    const shown = [...all].filter((id) => known.has(id));
    if (shown.length < all.size) await top();
    for (let first = 0; first < shown.length; first += MAX_IDS) {
      const some = shown.slice(first, first + MAX_IDS);
      const page = await get("/v1/jobs", { id: some, limit: MAX_IDS, summary: true }).catch(() => null);
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

/** Call a function with the ids of the jobs whose state has changed, at most twice a second; another when the stream opens. */
function useChangedJobs(changed, opened) {
  const waiting = useRef({ ids: new Set(), timer: 0 });
  useEvents((event) => {
    if (!event.job_id || !["status", "evaluation", "verdict", "collapse"].includes(event.type)) return;
    const { ids, timer } = waiting.current;
    ids.add(event.job_id);
    if (timer) return;
    waiting.current.timer = setTimeout(() => {
      waiting.current = { ids: new Set(), timer: 0 };
      changed(ids);
    }, 500);
  }, opened);
}

/** The rows of both, without repetitions. */
function merged(first, then) {
  const known = new Set(first.map((row) => row.id));
  return [...first, ...then.filter((row) => !known.has(row.id))];
}
