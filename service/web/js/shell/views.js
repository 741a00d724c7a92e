import { QueuePage } from "../cluster/queue-page.js";
import { DatasetsPage } from "../datasets/datasets-page.js";
import { JobsPage } from "../jobs/jobs-page.js";
import { later } from "../ui/state.js";

// What a visit may not need is loaded when it is opened.
const ClusterPage = later(async () => (await import("../cluster/cluster-page.js")).ClusterPage);
const ComparePage = later(async () => (await import("../compare/compare-page.js")).ComparePage);
const ExperimentsPage = later(
  async () => (await import("../experiments/experiments-page.js")).ExperimentsPage,
);
const SubmitPage = later(async () => (await import("../submit/submit-page.js")).SubmitPage);

/**
 * The views by the first part of the address; those with `nav` are in the bar, in this order.
 * @type {{path: string, title: string, nav?: boolean,
 *   component: import("preact").ComponentType<ViewProps>}[]}
 */
export const VIEWS = [
  { path: "jobs", title: "Jobs", component: JobsPage, nav: true },
  { path: "experiments", title: "Experiments", component: ExperimentsPage, nav: true },
  { path: "queue", title: "Queue", component: QueuePage, nav: true },
  { path: "datasets", title: "Data sets", component: DatasetsPage, nav: true },
  { path: "cluster", title: "Cluster", component: ClusterPage, nav: true },
  { path: "compare", title: "Compare", component: ComparePage },
  { path: "submit", title: "Submit", component: SubmitPage },
];
