import { html, useMemo } from "../vendor.js";
import { Button } from "../ui/button.js";
import { Chart } from "./chart.js";
import { smooth } from "./smoothing.js";
import { chooseRange, toggleLog } from "./toolbar.js";

/**
 * A chart with its title.
 * @param {{id: string, title: string, x: number[],
 *   lines: (import("./chart.js").Line & {values: (number|null)[], low?: (number|null)[], high?: (number|null)[]})[],
 *   view: ReturnType<typeof import("./toolbar.js").viewOf>, sync: string}} props
 */
export function Panel({ id, title, x, lines, view, sync }) {
  const isLog = view.log.has(id) && lines.some((line) => line.values.some((value) => value > 0));
  const { data, drawn } = useMemo(() => prepared(x, lines, view.smoothing, isLog), [x, lines, view.smoothing, isLog]);
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

function prepared(x, lines, smoothing, isLog) {
  const data = [x];
  const drawn = [];
  const visible = (values) => (isLog ? values.map((value) => (value > 0 ? value : null)) : values);
  for (const { values, low, high, ...line } of lines) {
    const shown = visible(values);
    // Few points, as of evaluations, and constants are shown as they are.
    const isSmoothed = smoothing > 0 && !line.points && !line.dash;
    if (low) {
      // The range over the jobs of a group: the two lines between which the chart fills.
      for (const [edge, values] of [["high", high], ["low", low]]) {
        data.push(isSmoothed ? smooth(visible(values), smoothing) : visible(values));
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
