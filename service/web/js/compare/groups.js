import { COLORS } from "../core/theme.js";

/** Intervals in which longer series of several jobs are averaged: their thinned steps differ. */
const INTERVALS = 250;

/** @typedef {{name: string, color: string, jobs: Api.JobView[]}} Group */
/**
 * The jobs by what they have in common: the variant of an experiment, or the value of a tag.
 * @param {Api.JobView[]} jobs
 * @param {string} by `variant`, the key of a tag, or nothing for each job alone
 * @returns {Group[]}
 */
export function groupsOf(jobs, by) {
  const groups = new Map();
  for (const job of jobs) {
    const name = by === "variant" ? job.experiment?.variant : job.tags[by];
    const key = by ? (name ?? "none") : job.id;
    groups.set(key, { name: by ? key : job.name, jobs: [...(groups.get(key)?.jobs ?? []), job] });
  }
  return [...groups.values()].map((group, index) => ({
    ...group,
    color: COLORS[index % COLORS.length],
  }));
}

/** Jobs with the end of their id in names that several have. @param {Api.JobView[]} jobs */
export function distinct(jobs) {
  const isShared = (/** @type {string} */ name) =>
    jobs.filter((job) => job.name === name).length > 1;
  return jobs.map((job) =>
    isShared(job.name) ? { ...job, name: `${job.name} (${job.id.slice(-4)})` } : job,
  );
}

/** What these jobs can be grouped by. @param {Api.JobView[]} jobs @returns {string[]} */
export function groupings(jobs) {
  const keys = new Set(jobs.flatMap((job) => Object.keys(job.tags)));
  return [
    ...(jobs.some((job) => job.experiment) ? ["variant"] : []),
    ...[...keys].filter((key) => key !== "variant").sort(),
  ];
}

/**
 * Mean, minimum and maximum of several series at each step, or in intervals of steps.
 * @param {[number, number][][]} tables (step, value) of each job
 * @returns {[number, number, number, number][]} step, mean, minimum, maximum
 */
export function meanOf(tables) {
  if (tables.length === 1) return tables[0].map(([at, value]) => [at, value, value, value]);
  const steps = tables.flatMap((table) => table.map(([at]) => at));
  const last = steps.reduce((one, other) => Math.max(one, other), 0);
  const width = new Set(steps).size > 2 * INTERVALS ? last / INTERVALS : 0;
  const places = new Map();
  for (const table of tables) {
    const intervals = Map.groupBy(table, ([at]) => (width ? Math.ceil(at / width) * width : at));
    for (const [place, pairs] of intervals)
      places.set(place, [...(places.get(place) ?? []), mean(pairs.map(([, value]) => value))]);
  }
  return [...places]
    .sort(([one], [other]) => one - other)
    .map(([at, values]) => [at, mean(values), Math.min(...values), Math.max(...values)]);
}

/** @param {number[]} values */
export function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
