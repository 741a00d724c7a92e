import { setQuery } from "../core/router.js";
import { Button, Segmented } from "../ui/controls.js";
import { Chart } from "./chart.js";
import { html, useMemo } from "../vendor.js";

/**
 * @typedef {import("./chart.js").Values} Values
 * @typedef {import("./chart.js").Line & {values: Values, low?: Values, high?: Values}} Curve
 *   `low` and `high` are the range over the jobs of a group
 * @typedef {{id: string, title: string, x: number[], lines: Curve[]}} Curves
 */
/**
 * A chart with its title.
 * @param {Curves & {view: View, sync: string}} props
 */
export function Panel({ id, title, x, lines, view, sync }) {
  const isLog =
    view.log.has(id) &&
    lines.some((line) => line.values.some((value) => value !== null && value > 0));
  const { data, drawn } = useMemo(
    () => prepared(x, lines, view.smoothing, isLog),
    [x, lines, view.smoothing, isLog],
  );
  return html`<section class="panel" aria-label=${title}>
    <header>
      <h3>${title}</h3>
      <${Button} label="log" kind="tiny" pressed=${isLog} title="Logarithmic axis" onClick=${() => toggleLog(view.log, id)} />
    </header>
    <${Chart}
      name=${title}
      data=${data}
      lines=${drawn}
      log=${isLog}
      time=${view.time}
      range=${view.time ? null : view.range}
      onRange=${view.time ? () => undefined : chooseRange}
      sync=${sync}
    />
  </section>`;
}

/** @param {number[]} x @param {Curve[]} lines @param {number} smoothing @param {boolean} isLog */
function prepared(x, lines, smoothing, isLog) {
  /** @type {[number[], ...Values[]]} */
  const data = [x];
  /** @type {import("./chart.js").Line[]} */
  const drawn = [];
  const positive = (/** @type {number | null} */ value) =>
    value !== null && value > 0 ? value : null;
  const visible = (/** @type {Values} */ values) => (isLog ? values.map(positive) : values);
  for (const { values, low, high, ...line } of lines) {
    const shown = visible(values);
    // Few points, as of evaluations, and constants are shown as they are.
    const isSmoothed = smoothing > 0 && !line.points && !line.dash;
    if (low && high) {
      // The two lines between which the chart fills.
      for (const edge of /** @type {const} */ (["high", "low"])) {
        const bound = visible(edge === "high" ? high : low);
        data.push(isSmoothed ? smooth(bound, smoothing) : bound);
        drawn.push({ ...line, points: false, edge });
      }
    } else if (isSmoothed) {
      data.push(shown);
      drawn.push({ ...line, raw: true });
    }
    data.push(isSmoothed ? smooth(shown, smoothing) : shown);
    drawn.push(line);
  }
  return { data, drawn };
}

/**
 * The exponential moving average of the values that are there, corrected for its start at zero.
 * @param {(number | null)[]} values
 * @param {number} weight of the past, from 0 to 1
 */
export function smooth(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

/**
 * @typedef {ReturnType<typeof viewOf>} View
 * @typedef {import("./chart.js").Range} Range
 */

/**
 * How curves are shown, which the address keeps: smoothing, the x axis, and the range of steps.
 * @param {URLSearchParams} query
 */
export function viewOf(query) {
  const [min, max] = (query.get("range") ?? "").split("-").map(Number);
  return {
    smoothing: Math.min(0.99, Math.max(0, Number(query.get("smooth") ?? 0) || 0)),
    time: query.get("x") === "time",
    log: new Set((query.get("log") ?? "").split(",").filter(Boolean)),
    range: max > min ? { min, max } : null,
  };
}

/** @param {Range | null} range */
export function chooseRange(range) {
  setQuery({ range: range && `${Math.floor(range.min)}-${Math.ceil(range.max)}` });
}

/** @param {Set<string>} chosen @param {string} panel */
function toggleLog(chosen, panel) {
  const next = new Set(chosen);
  if (!next.delete(panel)) next.add(panel);
  setQuery({ log: [...next].join(",") });
}

/**
 * Controls above the curves; `onlySteps`: there is no axis of times.
 * @param {{view: View, onSave?: () => unknown, onlySteps?: boolean, children?: Content}} props
 */
export function CurveToolbar({ view, onSave, onlySteps, children }) {
  return html`<div class="toolbar">
    <label class="slider">
      Smoothing
      <input
        type="range"
        min="0"
        max="0.99"
        step="0.01"
        value=${view.smoothing}
        onInput=${(event) => setQuery({ smooth: Number(event.currentTarget.value) || null })}
      />
      <output>${view.smoothing.toFixed(2)}</output>
    </label>
    ${!onlySteps && html`<${Segmented} label="Horizontal axis" options=${{ "": "Step", time: "Time" }} value=${view.time ? "time" : ""} onChange=${(x) => setQuery({ x, range: null })} />`}
    ${view.range && html`<${Button} icon="reset" label="All steps" onClick=${() => chooseRange(null)} />`}
    <span class="grow"></span>
    ${children}
    ${onSave && html`<${Button} icon="download" label="CSV" title="Save the values as a table" onClick=${onSave} />`}
  </div>`;
}
