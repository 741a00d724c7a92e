import { get, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";
import { useRef } from "../vendor.js";

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
  const newest = useRef(/** @type {Columns | null} */ (null));
  const isStale = useRef(false);
  const path = /** @type {const} */ (`/v1/jobs/${encodeURIComponent(job)}/metrics`);
  const whole = useResource(
    async (signal) => {
      const known = isStale.current ? null : newest.current;
      const last = known && known.step.length <= MOST_POINTS ? known.step.at(-1) : undefined;
      const query = last === undefined ? {} : { from_step: last + 1 };
      const answer = await get(path, { ...query, max_points: POINTS }, signal);
      isStale.current = false;
      if (!known || last === undefined) newest.current = answer;
      else if (answer.step.length) newest.current = joined(known, answer);
      return newest.current;
    },
    [job],
    { every: ended ? 0 : SECONDS },
  );
  // A job that restarts repeats steps: what is known of them is no longer true.
  useEvents((event) => {
    if (event.job_id === job && event.type === "status" && event.data?.to === "running")
      isStale.current = true;
  });
  const detail = useResource(
    async (signal) => {
      if (!range) return null;
      const steps = { from_step: Math.floor(range.min), to_step: Math.ceil(range.max) };
      return get(path, { ...steps, max_points: POINTS }, signal);
    },
    [job, range?.min, range?.max],
  );
  return { ...whole, data: (detail.data ?? whole.data) || undefined };
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
