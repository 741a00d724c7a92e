import { JobPage } from "../job/job-page.js";
import { html } from "../vendor.js";
import { JobList } from "./job-list.js";

/** `#/jobs` is the list, `#/jobs/JOB/VIEW` one job. @param {ViewProps} props */
export function JobsPage({ rest, query }) {
  return rest.length
    ? html`<${JobPage} key=${rest[0]} id=${rest[0]} view=${rest[1] ?? "curves"} query=${query} />`
    : html`<${JobList} query=${query} />`;
}
