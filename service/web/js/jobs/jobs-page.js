import { useKeys } from "../core/keys.js";
import { go, link, setQuery } from "../core/router.js";
import { may } from "../core/session.js";
import { JobPage } from "../job/job-page.js";
import { Button, Icon } from "../ui/controls.js";
import { Failure, Loading } from "../ui/state.js";
import { act, ACTIONS } from "./actions.js";
import { ColumnChoice, useColumns } from "./columns.js";
import { Filters, filtersOf } from "./filters.js";
import { JobTable } from "./job-table.js";
import { NoJobs } from "./no-jobs.js";
import { useJobs } from "./use-jobs.js";
import { html, useMemo, useState } from "../vendor.js";

/** `#/jobs` is the list, `#/jobs/JOB/VIEW` one job. @param {ViewProps} props */
export function JobsPage({ rest, query }) {
  return rest.length
    ? html`<${JobPage} key=${rest[0]} id=${rest[0]} view=${rest[1] ?? "curves"} query=${query} />`
    : html`<${JobList} query=${query} />`;
}

/** @typedef {Api.JobSummary} Job */
/** The jobs of the tenant: filter, sort, select. @param {{query: URLSearchParams}} props */
function JobList({ query }) {
  const text = query.toString();
  const filters = useMemo(() => filtersOf(query), [text]);
  const list = useJobs(filters);
  const columns = useColumns();
  const [selected, setSelected] = useState(/** @type {Map<string, Job>} */ (new Map()));
  const [row, setRow] = useState(-1);

  const toggle = (/** @type {Job} */ job) => {
    const next = new Map(selected);
    if (!next.delete(job.id)) next.set(job.id, job);
    setSelected(next);
  };
  const move = (/** @type {number} */ by) =>
    setRow((before) => Math.max(0, Math.min(list.rows.length - 1, before + by)));
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: (event) => {
      const isOnControl =
        event.target instanceof Element && event.target.closest("a, button, input, select");
      if (list.rows[row] && !isOnControl) go(["jobs", list.rows[row].id]);
    },
    x: () => list.rows[row] && toggle(list.rows[row]),
    c: () => selected.size > 1 && go(["compare"], { jobs: [...selected.keys()].join(",") }),
    Escape: () => setSelected(new Map()),
  });

  const isFiltered = [...query.keys()].some((name) => name !== "sort");
  // The newest answer about each selected job: what may be done with it depends on its state.
  const chosen = useMemo(() => {
    const known = new Map(list.rows.map((job) => [job.id, job]));
    return [...selected.values()].map((job) => known.get(job.id) ?? job);
  }, [selected, list.rows]);
  return html`<div class="jobs page">
    <div class="page-head">
      <h1>Jobs</h1>
      <${Filters} filters=${filters} />
      <${ColumnChoice} columns=${columns} />
    </div>
    ${list.error && html`<${Failure} error=${list.error} onRetry=${list.reload} />`}
    ${
      list.rows.length > 0 &&
      html`<${JobTable}
      list=${list}
      columns=${columns.shown}
      sort=${filters.sort}
      onSort=${(sort) => setQuery({ sort })}
      selected=${selected}
      onToggle=${toggle}
      onToggleAll=${() => setSelected(selected.size ? new Map() : new Map(list.rows.map((job) => [job.id, job])))}
      row=${row}
    />`
    }
    ${list.rows.length === 0 && list.loading && html`<${Loading} what="jobs" />`}
    ${list.rows.length === 0 && !list.loading && !list.error && html`<${NoJobs} isFiltered=${isFiltered} />`}
    ${
      selected.size > 0 &&
      html`<${BulkBar} jobs=${chosen} onClear=${() => setSelected(new Map())} onDone=${list.reload} />`
    }
  </div>`;
}

/**
 * What can be done with the selected jobs. An action that fits only some of them is run on those.
 * @param {{jobs: AnyJob[], onClear: () => void, onDone: () => void}} props
 */
function BulkBar({ jobs, onClear, onDone }) {
  const ids = jobs.map((job) => job.id).join(",");
  const run = async (
    /** @type {import("./actions.js").Action} */ action,
    /** @type {AnyJob[]} */ fitting,
  ) => {
    if (!(await act(action, fitting))) return;
    if (action.name === "delete") onClear();
    onDone();
  };
  return html`<div class="bulk-bar" role="toolbar" aria-label="Selected jobs">
    <strong>${jobs.length} selected</strong>
    <a class="button" href=${link(["compare"], { jobs: ids })} title="Overlay the curves (c)"><${Icon} name="compare" /><span>Compare</span></a>
    ${
      may("submit") &&
      html`${ACTIONS.map((action) => {
        const fitting = jobs.filter(action.applies);
        const label =
          fitting.length === jobs.length ? action.title : `${action.title} ${fitting.length}`;
        return html`<${Button}
          key=${action.name}
          icon=${action.icon}
          label=${label}
          kind=${action.danger ? "danger" : ""}
          disabled=${fitting.length === 0}
          title=${fitting.length ? "" : "No selected job is in a state for this"}
          onClick=${() => run(action, fitting)}
        />`;
      })}
      ${jobs.length === 1 && html`<${Button} icon="copy" label="Clone" onClick=${() => go(["submit"], { clone: ids })} />`}`
    }
    <span class="grow"></span>
    <${Button} icon="close" label="Clear the selection" quiet onClick=${onClear} />
  </div>`;
}
