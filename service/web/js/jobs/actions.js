import { post, remove } from "../core/api.js";
import { complain, say } from "../core/toasts.js";
import { confirm } from "../ui/dialog.js";

/** @type {Api.JobStatus[]} */
const FINAL = ["succeeded", "failed", "cancelled"];
/** @type {Api.JobStatus[]} */
const STARTED = ["starting", "running"];

/** Whether a job has ended. @param {AnyJob} job */
export const isFinal = (job) => isOne(FINAL, job.status);

/** Whether a job's status is one of these. @param {Api.JobStatus[]} statuses @param {string} status */
export const isOne = (statuses, status) => statuses.some((each) => each === status);

/** The state to show: a request to pause or cancel is shown before the job has received it. @param {AnyJob} job */
export function stateOf(job) {
  if (!isOne(STARTED, job.status) || job.desired === "run") return job.status;
  return job.desired === "pause" ? "pausing" : "cancelling";
}

/**
 * @typedef {{name: string, title: string, icon: import("../ui/controls.js").Icons, danger?: boolean, question?: string,
 *   applies: (job: AnyJob) => boolean, run: (job: AnyJob) => Promise<unknown>, done: string}} Action
 */
/**
 * What can be done with a job, or with several at once.
 * @type {Action[]}
 */
export const ACTIONS = [
  {
    name: "pause",
    title: "Pause",
    icon: "pause",
    applies: (job) => !isFinal(job) && job.desired === "run",
    run: (job) => post(`/v1/jobs/${job.id}/pause`),
    done: "Saves a checkpoint, then pauses",
  },
  {
    name: "resume",
    title: "Resume",
    icon: "play",
    applies: (job) => job.status === "paused",
    run: (job) => post(`/v1/jobs/${job.id}/resume`),
    done: "Queued again",
  },
  {
    name: "cancel",
    title: "Cancel",
    icon: "stop",
    question:
      "It stops after its current step, and cannot be resumed. Pause it if you want to go on later.",
    applies: (job) => !isFinal(job) && job.desired !== "cancel",
    run: (job) => post(`/v1/jobs/${job.id}/cancel`),
    done: "Stops after its current step",
  },
  {
    name: "delete",
    title: "Delete",
    icon: "trash",
    danger: true,
    question: "Its checkpoints, metrics, logs and files are removed for good.",
    applies: isFinal,
    run: (job) => remove(`/v1/jobs/${job.id}`),
    done: "Deleted",
  },
];

/**
 * Run an action on each of these jobs, after a question if it cannot be undone. Return whether it was run.
 * @param {Action} action
 * @param {AnyJob[]} jobs
 */
export async function act(action, jobs) {
  const what = jobs.length === 1 ? `“${jobs[0].name}”` : `${jobs.length} jobs`;
  if (action.question) {
    const title = `${action.title} ${what}`;
    if (!(await confirm(`${title}?`, action.question, title))) return false;
  }
  const results = await Promise.allSettled(jobs.map(action.run));
  const failures = results.filter((result) => result.status === "rejected");
  for (const failure of failures.slice(0, 3)) complain(failure.reason);
  if (failures.length > 3) complain(new Error(`${failures.length - 3} more jobs were refused.`));
  const succeeded = jobs.length - failures.length;
  if (succeeded)
    say(`${succeeded === 1 ? action.done : `${succeeded} jobs: ${action.done.toLowerCase()}`}.`);
  return true;
}
