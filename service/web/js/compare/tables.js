import { useResource } from "../core/api.js";
import { count, figure, label } from "../core/format.js";
import { link } from "../core/router.js";
import { metrics } from "../core/session.js";
import { saveCsv } from "../charts/csv.js";
import { differing, flat, shown } from "../job/settings.js";
import { Button } from "../ui/controls.js";
import { Table } from "../ui/values.js";
import { common, mayBeChance, remarks } from "./chance.js";
import { evaluated, NOTHING } from "./evaluated.js";
import { mean } from "./groups.js";
import { html, useMemo } from "../vendor.js";

/** Below this number of held-out images, hundredths of a percent say nothing. */
const MANY = 1000;

/** @typedef {import("./evaluated.js").Metrics} Metrics */
/**
 * The newest evaluation of each job or the mean of each group; a value is marked if chance alone hardly makes it the best.
 * @param {{groups: import("./groups.js").Group[]}} props
 */
export function FigureTable({ groups }) {
  const jobs = groups.flatMap((group) => group.jobs);
  const key = jobs
    .map((job) => `${job.id}${job.progress?.knn}`)
    .sort()
    .join();
  const answer = useResource((signal) => evaluated(jobs, signal), [key]);
  const metricsOf = answer.data;
  if (!metricsOf) return null;
  const members = groups.map((group) => group.jobs.map((job) => metricsOf.get(job.id) ?? NOTHING));
  const meansOf = (/** @type {"trained" | "raw" | "start"} */ subject) =>
    members.map((jobs) => means(jobs.map((job) => job[subject])));
  const data = meansOf("trained");
  const counts = members.map((each) => common(each.map((job) => job.images)));
  const names = groups.map((group) =>
    group.jobs.length > 1 ? `${group.name} (${group.jobs.length})` : group.name,
  );
  const has = (/** @type {Metrics[]} */ table, /** @type {string} */ name) =>
    table.some((metrics) => typeof metrics[name] === "number");
  const known = Object.keys(metrics()).filter((name) => has(data, name));
  if (!known.length) return null;
  const baselines = Object.entries({
    "raw pixels": meansOf("raw"),
    "before training": meansOf("start"),
  });
  const values = known.map(
    (name) =>
      /** @type {[string, number[]]} */ ([name, numbers(data.map((metrics) => metrics[name]))]),
  );
  const save = () =>
    saveCsv(
      "comparison",
      ["metric", ...names],
      known.map((name) => [name, ...data.map((metrics) => metrics[name])]),
    );
  return html`<section class="card">
    <header class="card-head"><h2>Newest evaluation</h2><${Button} icon="download" label="CSV" onClick=${save} /></header>
    <${Table} label="Newest evaluation" head=${html`<th>Metric</th>${groups.map((group, index) => html`<th class="right"><span class="mark" style=${{ "--mark": `var(${group.color})` }}></span>${names[index]}</th>`)}`}>
      <tr><th scope="row">held-out images</th>${counts.map((each) => html`<td class="right">${count(each)}</td>`)}</tr>
      ${known.map((name) => [
        html`<${Row} title=${label(name)} name=${name} data=${data} counts=${counts} best=${bestOf(name, data, counts)} />`,
        ...baselines
          .filter(([, baseline]) => has(baseline, name))
          .map(
            ([subject, baseline]) =>
              html`<${Row} title=${`${label(name)}, ${subject}`} name=${name} data=${baseline} counts=${counts} muted />`,
          ),
      ])}
    <//>
    ${
      groups.length > 1 &&
      html`<ul class="remarks muted">
      ${remarks(values, counts).map((each) => html`<li>${each}</li>`)}
      <li>Another seed changes these metrics, too: <a href=${link(["experiments"])}>experiments</a> compare variants over several seeds.</li>
    </ul>`
    }
  </section>`;
}

/**
 * A metric of each group; `best` is the index of the one that is marked.
 * @param {{title: string, name: string, data: Metrics[], counts: (number | null)[], best?: number, muted?: boolean}} props
 */
function Row({ title, name, data, counts, best, muted }) {
  return html`<tr class=${muted ? "muted" : ""}>
    <th scope="row">${title}</th>
    ${data.map((metrics, index) => html`<td class=${`right ${index === best ? "best" : ""}`}>${figure(name, metrics[name], (counts[index] ?? 0) >= MANY ? 2 : 1)}</td>`)}
  </tr>`;
}

/** The mean of each metric that all jobs of a group have. @param {Metrics[]} jobs @returns {Metrics} */
function means(jobs) {
  if (jobs.length === 1) return jobs[0];
  const shared = Object.keys(jobs[0]).filter((name) =>
    jobs.every((metrics) => typeof metrics[name] === "number"),
  );
  return Object.fromEntries(
    shared.map((name) => [name, mean(jobs.map((metrics) => metrics[name]))]),
  );
}

/**
 * The index of the share that is larger than all others, by more than chance; undefined if there is none.
 * @param {string} name @param {Metrics[]} data @param {(number | null)[]} counts
 */
function bestOf(name, data, counts) {
  const values = data.map((metrics) => metrics[name]);
  const known = numbers(values);
  if (new Set(known).size < 2 || new Set(counts).size > 1) return undefined;
  const best = Math.max(...known);
  const index = values.indexOf(best);
  const others = numbers(values.filter((_, other) => other !== index));
  return others.some((other) => other === best || mayBeChance(name, best, other, common(counts)))
    ? undefined
    : index;
}

/** @param {(number | undefined)[]} values */
function numbers(values) {
  return values.filter((value) => typeof value === "number");
}

/**
 * The settings in which the jobs differ; what is not the first job's is marked.
 * @param {{jobs: (Api.JobView & {color: string})[]}} props
 */
export function SettingTable({ jobs }) {
  const key = jobs.map((job) => job.id).join();
  const rows = useMemo(() => {
    const specs = jobs.map(({ resolved, dataset, dataset_version }) => ({
      ...resolved,
      dataset: `${dataset.name}@${dataset_version}`,
      name: undefined,
      tags: undefined,
    }));
    const tables = specs.map((spec) => flat(spec));
    return differing(
      specs,
      jobs.map((job) => job.spec),
    ).map((name) => ({ name, values: tables.map((table) => table.get(name)) }));
  }, [key]);
  if (jobs.length < 2) return null;
  return html`<section class="card">
    <h2>Settings that differ</h2>
    ${
      rows.length === 0
        ? html`<p class="muted">None: these jobs differ by chance alone.</p>`
        : html`<${Table} label="Settings that differ" head=${html`<th>Setting</th>${jobs.map((job) => html`<th><span class="mark" style=${{ "--mark": `var(${job.color})` }}></span>${job.name}</th>`)}`}>
          ${rows.map(
            ({ name, values }) => html`<tr>
              <th scope="row"><code>${name}</code></th>
              ${values.map((value) => html`<td class=${JSON.stringify(value) === JSON.stringify(values[0]) ? "" : "differs"}>${value === null ? "off" : value === undefined && !name.includes(".") ? "on" : shown(value)}</td>`)}
            </tr>`,
          )}
        <//>`
    }
  </section>`;
}
