import { get } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { useCallback, useEffect, useRef, useState } from "../vendor.js";

/** Steps that one request returns: about two for each pixel of a chart. */
const POINTS = 1000;
/** Beyond these, what live reports have added is fetched again, thinned. */
const MOST_POINTS = 3000;
const SECONDS = 4;

/** @typedef {Api.MetricColumns} Columns */

/**
 * The training metrics of a job: thinned by the server, with those of a range of steps in full once one is chosen.
 * @param {string} job
 * @param {boolean} ended whether nothing will be added
 * @param {import("./chart.js").Range | null} range
 */
export function useSeries(job, ended, range) {
  const [columns, setColumns] = useState(/** @type {Columns | null} */ (null));
  const [detail, setDetail] = useState(/** @type {Columns | null} */ (null));
  const [error, setError] = useState(/** @type {Refusal | null} */ (null));
  const newest = useRef(columns);
  const isStale = useRef(false);
  newest.current = columns;

  const refresh = useCallback(
    async (/** @type {AbortSignal} */ signal) => {
      const known = newest.current;
      const last = known?.step.at(-1);
      const isWhole =
        isStale.current || !known || last === undefined || known.step.length > MOST_POINTS;
      const query = isWhole ? {} : { from_step: last + 1 };
      const answer = await get(
        `/v1/jobs/${encodeURIComponent(job)}/metrics`,
        { ...query, max_points: POINTS },
        signal,
      );
      isStale.current = false;
      if (isWhole) setColumns(answer);
      else if (answer.step.length) setColumns(joined(known, answer));
    },
    [job],
  );

  useEffect(() => {
    const canceled = new AbortController();
    /** @type {number | undefined} */
    let timer;
    const run = async () => {
      try {
        await refresh(canceled.signal);
        setError(null);
      } catch (problem) {
        if (!canceled.signal.aborted) setError(problem);
      }
      if (!ended && !canceled.signal.aborted) timer = setTimeout(run, SECONDS * 1000);
    };
    void run();
    return () => {
      canceled.abort();
      clearTimeout(timer);
    };
  }, [job, ended]);

  // A job that restarts repeats steps: what is known of them is no longer true.
  useEvents((event) => {
    if (event.job_id === job && event.type === "status" && event.data?.to === "running")
      isStale.current = true;
  });

  useEffect(() => {
    setDetail(null);
    if (!range) return undefined;
    const canceled = new AbortController();
    const query = {
      from_step: Math.floor(range.min),
      to_step: Math.ceil(range.max),
      max_points: POINTS,
    };
    get(`/v1/jobs/${encodeURIComponent(job)}/metrics`, query, canceled.signal).then(
      setDetail,
      () => undefined,
    );
    return () => canceled.abort();
  }, [job, range?.min, range?.max]);

  return { columns: detail ?? columns, error };
}

/** @param {Columns} known @param {Columns} more @returns {Columns} */
function joined(known, more) {
  /** @type {Columns["values"]} */
  const values = {};
  const names = new Set([...Object.keys(known.values), ...Object.keys(more.values)]);
  for (const name of names) {
    const before = known.values[name] ?? known.step.map(() => null);
    values[name] = before.concat(more.values[name] ?? more.step.map(() => null));
  }
  return { step: known.step.concat(more.step), time: known.time.concat(more.time), values };
}
