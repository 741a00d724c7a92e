import { theme } from "../core/theme.js";
import { useStore } from "../core/store.js";
import { number } from "../core/format.js";
import { html, useEffect, useRef } from "../vendor.js";

/** Colors of series that people with any color vision can tell apart, for both themes. */
export const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

/**
 * @typedef {{label: string, color: string, dash?: number[], raw?: boolean, edge?: "high" | "low", points?: boolean}} Line
 *   `color` is a CSS variable with six hexadecimal digits; `raw` lines are faint and not in the legend; a line with the
 *   edge `high` and the `low` one after it bound a band
 * @typedef {{min: number, max: number} | null} Range
 */

/**
 * Curves over a common x axis. Charts with the same `sync` share the cursor; a drag chooses a range of x.
 * @param {{data: (number | null)[][], lines: Line[], log: boolean, time: boolean, range: Range,
 *   onRange: (range: Range) => void, sync: string, name: string}} props
 */
export function Chart({ data, lines, log, time, range, onRange, sync, name }) {
  const box = useRef(null);
  const plot = useRef(null);
  const choose = useRef(onRange);
  choose.current = onRange;
  const shade = useStore(theme);
  const shape = JSON.stringify([lines, log, time, shade]);
  useEffect(() => {
    const element = box.current;
    const options = describe(element, lines, { log, time, sync, choose });
    plot.current = new globalThis.uPlot(options, data, element);
    show(plot.current, range);
    const observer = new ResizeObserver(() => {
      const width = element.clientWidth;
      if (width && width !== plot.current.width) plot.current.setSize({ width, height: HEIGHT });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    const drawn = plot.current;
    if (!drawn || drawn.data === data) return;
    drawn.setData(data, false);
    show(drawn, range);
  }, [data]);
  useEffect(() => {
    if (plot.current) show(plot.current, range);
  }, [range?.min, range?.max]);
  return html`<div class="chart" ref=${box} role="img" aria-label=${summary(name, data, lines)}></div>`;
}

const HEIGHT = 190;

function show(plot, range) {
  const steps = plot.data[0];
  const whole = { min: steps[0] ?? 0, max: steps[steps.length - 1] ?? 1 };
  const { min, max } = range ?? whole;
  plot.setScale("x", { min, max: max > min ? max : min + 1 });
}

/** What the chart shows, for those who do not see it: the newest value of each line. */
function summary(name, data, lines) {
  const newest = lines
    .map((line, index) => [line, data[index + 1]?.findLast((value) => value !== null && value !== undefined)])
    .filter(([line, value]) => !line.raw && !line.edge && value !== undefined)
    .map(([line, value]) => `${line.label} ${number(value)}`);
  return `${name}: ${newest.join(", ") || "no values"}`;
}

function describe(element, lines, { log, time, sync, choose }) {
  const style = getComputedStyle(element);
  const color = (variable) => style.getPropertyValue(variable).trim();
  const axis = {
    stroke: color("--muted"),
    font: `11px ${style.fontFamily}`,
    grid: { stroke: color("--grid"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: element.clientWidth || 320,
    height: HEIGHT,
    padding: [8, 18, 0, 0],
    scales: { x: { time: false, auto: false }, y: log ? { distr: 3 } : {} },
    cursor: {
      sync: { key: sync, scales: ["x", null] },
      drag: { x: true, y: false, setScale: false },
      points: { size: 5 },
      bind: { dblclick: () => () => choose.current(null) },
    },
    hooks: { setSelect: [(plot) => selected(plot, choose)] },
    legend: { markers: { width: 0, fill: (plot, index) => color(lines[index - 1]?.color ?? "--muted") } },
    series: [
      { label: time ? "time" : "step", value: (_, value) => (time ? hours(value) : stepText(value)) },
      ...lines.map((line) => ({
        label: line.label,
        class: line.raw || line.edge ? "raw" : null,
        stroke: line.edge ? "transparent" : line.raw ? `${color(line.color)}48` : color(line.color),
        width: line.raw || line.edge ? 1 : 1.6,
        dash: line.dash,
        spanGaps: true,
        points: line.points ? { show: true, size: 4, fill: color(line.color) } : { show: false },
        // Without the cursor there is no value to show.
        value: (_, value) => (value === null || value === undefined ? "" : number(value)),
      })),
    ],
    bands: lines.flatMap((line, index) =>
      line.edge === "high" ? [{ series: [index + 1, index + 2], fill: `${color(line.color)}2c` }] : [],
    ),
    axes: [
      { ...axis, size: 26, values: (_, ticks) => ticks.map(time ? hours : short) },
      { ...axis, size: 46, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) },
    ],
  };
}

function selected(plot, choose) {
  const { left, width } = plot.select;
  if (width > 4) choose.current({ min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") });
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

function stepText(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

function hours(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.round(seconds);
  const pad = (value) => String(value).padStart(2, "0");
  const text = `${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
  return whole < 3600 ? text : `${Math.floor(whole / 3600)}:${text}`;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}
