import { setQuery } from "../core/router.js";
import { Button } from "../ui/button.js";
import { html } from "../vendor.js";

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
export function toggleLog(chosen, panel) {
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
    ${
      !onlySteps &&
      html`<div class="segmented" role="group" aria-label="Horizontal axis">
      <${Button} label="Step" pressed=${!view.time} onClick=${() => setQuery({ x: null, range: null })} />
      <${Button} label="Time" pressed=${view.time} onClick=${() => setQuery({ x: "time", range: null })} />
    </div>`
    }
    ${view.range && html`<${Button} icon="reset" label="All steps" onClick=${() => chooseRange(null)} />`}
    <span class="grow"></span>
    ${children}
    ${onSave && html`<${Button} icon="download" label="CSV" title="Save the values as a table" onClick=${onSave} />`}
  </div>`;
}
