import { html, useMemo } from "../vendor.js";
import { Button } from "../ui/button.js";
import { Chart } from "./chart.js";
import { smooth } from "./smoothing.js";
import { chooseRange, toggleLog } from "./toolbar.js";

/**
 * @typedef {import("./chart.js").Values} Values
 * @typedef {import("./chart.js").Line & {values: Values, low?: Values, high?: Values}} Curve
 *   `low` and `high` are the range over the jobs of a group
 * @typedef {{id: string, title: string, x: number[], lines: Curve[]}} Curves
 */
/**
 * A chart with its title.
 * @param {Curves & {view: import("./toolbar.js").View, sync: string}} props
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
