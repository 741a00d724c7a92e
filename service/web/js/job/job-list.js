import { request, useResource } from "../core/api.js";
import { useEvents } from "../core/events.js";

/**
 * A list that belongs to a job; it is requested again after each event of this type.
 * @template {string} Path
 * @param {Api.JobView} job @param {Path} path @param {string} type
 */
export function useJobList(job, path, type) {
  const resource = useResource(
    async (signal) => {
      const answer = await request(path, { signal });
      return /** @type {{data: Api.Items<Path>}} */ (answer).data;
    },
    [job.id],
  );
  useEvents(
    (event) => event.job_id === job.id && event.type === type && resource.reload(),
    resource.reload,
  );
  return resource;
}

/** The metrics that evaluations have measured. @param {Api.EvaluationView[]} evaluations */
export function measured(evaluations) {
  const values = evaluations.flatMap((each) => Object.entries(each.metrics));
  return [...new Set(values.flatMap(([name, value]) => (typeof value === "number" ? name : [])))];
}
