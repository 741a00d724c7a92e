import { all, get } from "../core/api.js";

/** @typedef {Record<string, number>} Metrics */
/** @typedef {{trained: Metrics, raw: Metrics, start: Metrics, images: number | null}} Evaluated */
/**
 * Of a job of which nothing is known.
 * @type {Evaluated}
 */
export const NOTHING = { trained: {}, raw: {}, start: {}, images: null };

/**
 * What was measured of these jobs by their ids: metrics of the newest evaluation, `trained`, of `raw` pixels
 * and of the backbone at the `start` of training; and the number of held-out `images`, null if it is not known.
 * @param {Api.JobView[]} jobs
 * @param {AbortSignal} signal
 */
export async function evaluated(jobs, signal) {
  const requests = new Map();
  /** @type {typeof all} */
  const once = (path, query) => {
    const key = JSON.stringify([path, query]);
    if (!requests.has(key)) requests.set(key, all(path, query, signal));
    return requests.get(key);
  };
  const answers = jobs.map(async (job) => {
    const [metrics, images] = await Promise.all([newest(job, signal), heldOut(job, once)]);
    return /** @type {[string, Evaluated]} */ ([job.id, { ...metrics, images }]);
  });
  return new Map(await Promise.all(answers));
}

/** @param {Api.JobView} job @param {AbortSignal} signal */
async function newest(job, signal) {
  const { data } = await get(`/v1/jobs/${job.id}/evaluations`, {}, signal);
  const last = (/** @type {string[]} */ ...subjects) =>
    data.filter((each) => subjects.includes(each.subject)).at(-1)?.metrics;
  return {
    trained: last("embedding") ?? last("backbone") ?? {},
    raw: last("raw") ?? {},
    start: last("start", "untrained") ?? {},
  };
}

/** The nearest integer, and of two equally near ones the even one, as a training rounds. @param {number} value */
function toEven(value) {
  const whole = Math.floor(value);
  return value - whole === 0.5 ? whole + (whole % 2) : Math.round(value);
}

/**
 * The number of images that a job is evaluated on, as its data set has them: an expected one if classes are held out.
 * @param {Api.JobView} job
 * @param {typeof all} once
 */
async function heldOut({ resolved, dataset, dataset_version, evaluate_dataset_version }, once) {
  const { dataset: other, holdout, gallery } = resolved?.evaluate ?? {};
  if (gallery) return null;
  // By name or id, perhaps with a version.
  const name = other?.split("@")[0];
  try {
    /** @type {string | undefined} */
    const id = !name
      ? dataset.id
      : name.startsWith("ds_")
        ? name
        : (await once("/v1/datasets", { name }))[0]?.id;
    if (!id) return null;
    const number = name ? evaluate_dataset_version : dataset_version;
    const versions = await once(`/v1/datasets/${id}/versions`, {});
    const images = versions.find((each) => each.number === number)?.facts?.num_images;
    return (images && toEven((name ? 1 : (holdout?.fraction ?? 0)) * images)) || null;
  } catch (problem) {
    if (problem.status === 404) return null; // it was deleted
    throw problem;
  }
}
