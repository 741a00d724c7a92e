import { post, remove } from "../core/api.js";
import { complain, say } from "../core/toasts.js";
import { confirm } from "../ui/dialog.js";

const FINAL = ["succeeded", "failed", "cancelled"];

export const isFinal = (job) => FINAL.includes(job.status);

/** The state to show: a request to pause or cancel counts before the job has heard of it. */
export function stateOf(job) {
  if (!["starting", "running"].includes(job.status)) return job.status;
  return { pause: "pausing", cancel: "cancelling" }[job.desired] ?? job.status;
}

/**
 * What can be done with a job, or with several at once.
 * @type {Record<string, {title: string, icon: string, danger?: boolean, applies: (job: object) => boolean,
 *   run: (job: object) => Promise<unknown>, done: string}>}
 */
export const ACTIONS = {
  pause: {
    title: "Pause",
    icon: "pause",
    applies: (job) => !isFinal(job) && job.desired === "run",
    run: (job) => post(`/v1/jobs/${job.id}/pause`),
    done: "Saves a checkpoint, then pauses",
  },
  resume: {
    title: "Resume",
    icon: "play",
    applies: (job) => job.status === "paused",
    run: (job) => post(`/v1/jobs/${job.id}/resume`),
    done: "Queued again",
  },
  cancel: {
    title: "Cancel",
    icon: "stop",
    applies: (job) => !isFinal(job) && job.desired !== "cancel",
    run: (job) => post(`/v1/jobs/${job.id}/cancel`),
    done: "Stops after its current step",
  },
  delete: {
    title: "Delete",
    icon: "trash",
    danger: true,
    applies: isFinal,
    run: (job) => remove(`/v1/jobs/${job.id}`),
    done: "Deleted",
  },
};

/** Run an action on each of these jobs, after a question if it cannot be undone. Return whether it was run. */
export async function act(name, jobs) {
  const action = ACTIONS[name];
  const what = jobs.length === 1 ? `“${jobs[0].name}”` : `${jobs.length} jobs`;
  if (name === "delete" || name === "cancel") {
    const text =
      name === "delete"
        ? "Its checkpoints, metrics, logs and files are removed for good."
        : "It stops after its current step, and cannot be resumed. Pause it if you want to go on later.";
    const agreed = await confirm({ title: `${action.title} ${what}?`, text, action: `${action.title} ${what}`, danger: true });
    if (!agreed) return false;
  }
  const results = await Promise.allSettled(jobs.map(action.run));
  const failures = results.filter((result) => result.status === "rejected");
  for (const failure of failures.slice(0, 3)) complain(failure.reason);
  if (failures.length > 3) complain(new Error(`${failures.length - 3} more jobs were refused.`));
  const succeeded = jobs.length - failures.length;
  if (succeeded) say(`${succeeded === 1 ? action.done : `${succeeded} jobs: ${action.done.toLowerCase()}`}.`);
  return true;
}
