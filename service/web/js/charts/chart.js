import { rgbOf, theme } from "../core/theme.js";
import { useStore } from "../core/store.js";
import { number } from "../core/format.js";
import { html, useEffect, useRef } from "../vendor.js";

/**
 * @typedef {{label: string, color: string, dash?: number[], raw?: boolean, edge?: "high" | "low", points?: boolean}} Line
 *   `color` is a token of `rgbOf`; `raw` lines are faint and not in the legend; a line with the
 *   edge `high` and the `low` one after it bound a band
 * @typedef {{min: number, max: number}} Range
 * @typedef {(number | null)[]} Values
 * @typedef {{data: uPlot.AlignedData, lines: Line[], log: boolean, time: boolean, range: Range | null,
 *   onRange: (range: Range | null) => void, sync: string, name: string}} Props
 */

/**
 * Curves over a common x axis. Charts with the same `sync` share the cursor; a drag chooses a range of x.
 * @param {Props} props
 */
export function Chart({ data, lines, log, time, range, onRange, sync, name }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {uPlot | null} */ (null));
  const choose = useRef(onRange);
  choose.current = onRange;
  const shade = useStore(theme);
  const shape = JSON.stringify([lines, log, time, shade]);
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const drawn = new uPlot(describe(element, lines, { log, time, sync, choose }), data, element);
    plot.current = drawn;
    show(drawn, range);
    const observer = new ResizeObserver(() => {
      const width = element.clientWidth;
      if (width && width !== drawn.width) drawn.setSize({ width, height: HEIGHT });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      drawn.destroy();
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

/** @param {uPlot} plot @param {Range | null} range */
function show(plot, range) {
  const steps = plot.data[0];
  const whole = { min: steps[0] ?? 0, max: steps[steps.length - 1] ?? 1 };
  const { min, max } = range ?? whole;
  plot.setScale("x", { min, max: max > min ? max : min + 1 });
}

/**
 * What the chart shows, for those who do not see it: the newest value of each line.
 * @param {string} name @param {uPlot.AlignedData} data @param {Line[]} lines
 */
function summary(name, data, lines) {
  const newest = lines
    .map((line, index) => ({
      line,
      value: [...(data[index + 1] ?? [])].findLast(
        (value) => value !== null && value !== undefined,
      ),
    }))
    .filter(({ line, value }) => !line.raw && !line.edge && value !== undefined)
    .map(({ line, value }) => `${line.label} ${number(value)}`);
  return `${name}: ${newest.join(", ") || "no values"}`;
}

/** @typedef {{current: Props["onRange"]}} Choose */
/**
 * @param {HTMLElement} element
 * @param {Line[]} lines
 * @param {Pick<Props, "log" | "time" | "sync"> & {choose: Choose}} options
 * @returns {uPlot.Options}
 */
function describe(element, lines, { log, time, sync, choose }) {
  const color = (/** @type {string} */ token, opacity = 1) =>
    `rgb(${rgbOf(token).join(" ")} / ${opacity})`;
  const axis = {
    stroke: color("--muted"),
    font: `11px ${getComputedStyle(element).fontFamily}`,
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
      bind: {
        dblclick: () => () => {
          choose.current(null);
          return null;
        },
      },
    },
    hooks: { setSelect: [(plot) => selected(plot, choose)] },
    legend: {
      markers: { width: 0, fill: (_, index) => color(lines[index - 1]?.color ?? "--muted") },
    },
    series: [
      {
        label: time ? "time" : "step",
        value: (_, value) => (time ? hours(value) : stepText(value)),
      },
      ...lines.map((line) => ({
        label: line.label,
        class: line.raw || line.edge ? "raw" : undefined,
        stroke: line.edge ? "transparent" : line.raw ? color(line.color, 0.28) : color(line.color),
        width: line.raw || line.edge ? 1 : 1.6,
        dash: line.dash,
        spanGaps: true,
        points: line.points ? { show: true, size: 4, fill: color(line.color) } : { show: false },
        // Without the cursor there is no value to show.
        value: (/** @type {uPlot} */ _, /** @type {number | null} */ value) =>
          value === null ? "" : number(value),
      })),
    ],
    bands: lines.flatMap((line, index) =>
      line.edge === "high"
        ? [
            {
              series: /** @type {[number, number]} */ ([index + 1, index + 2]),
              fill: color(line.color, 0.17),
            },
          ]
        : [],
    ),
    axes: [
      { ...axis, size: 26, values: (_, ticks) => ticks.map(time ? hours : short) },
      {
        ...axis,
        size: 46,
        values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))),
      },
    ],
  };
}

/** @param {uPlot} plot @param {Choose} choose */
function selected(plot, choose) {
  const { left, width } = plot.select;
  if (width > 4)
    choose.current({ min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") });
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

/** @param {number | null} value */
function stepText(value) {
  return value === null ? "–" : Math.round(value).toLocaleString("en");
}

/** @param {number | null} seconds */
function hours(seconds) {
  if (seconds === null) return "";
  const whole = Math.round(seconds);
  const pad = (/** @type {number} */ value) => String(value).padStart(2, "0");
  const text = `${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
  return whole < 3600 ? text : `${Math.floor(whole / 3600)}:${text}`;
}

/** @param {number} value */
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}
