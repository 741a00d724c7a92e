// What is pressed: buttons, menus, code to copy; and the icons on them.

import { say } from "../core/toasts.js";
import { html, useEffect, useRef, useState } from "../vendor.js";

/**
 * A button; while its action runs, it is disabled.
 * @param {{icon?: Icons, label: string, onClick?: () => unknown, kind?: string, quiet?: boolean, disabled?: boolean,
 *   title?: string, pressed?: boolean, type?: "button" | "submit"}} props
 *   `quiet` shows the icon alone, and the label to screen readers and as a tooltip
 */
export function Button({
  icon,
  label,
  onClick,
  kind = "",
  quiet = false,
  disabled,
  title,
  pressed,
  type = "button",
}) {
  const [busy, setBusy] = useState(false);
  const click = async () => {
    setBusy(true);
    try {
      await onClick?.();
    } finally {
      setBusy(false);
    }
  };
  return html`<button
    type=${type}
    class=${`button ${kind} ${quiet ? "quiet" : ""}`}
    disabled=${disabled || busy}
    aria-label=${quiet ? label : undefined}
    aria-pressed=${pressed}
    title=${title ?? (quiet ? label : undefined)}
    onClick=${click}
  >
    ${icon && html`<${Icon} name=${icon} />`}${!quiet && html`<span>${label}</span>`}
  </button>`;
}

/**
 * A choice of one of few values, which are all shown.
 * @param {{label: string, options: Record<string, string>, value: string, onChange: (value: string) => void}} props
 */
export function Segmented({ label, options, value, onChange }) {
  return html`<div class="segmented" role="group" aria-label=${label}>
    ${Object.entries(options).map(([name, text]) => html`<${Button} key=${name} label=${text} pressed=${name === value} onClick=${() => onChange(name)} />`)}
  </div>`;
}

/**
 * A choice of one of many values; `label` if it stands in no label.
 * @param {{label?: string, options: string[][], value: string, onChange: (value: string) => void}} props
 */
export function Select({ label, options, value, onChange }) {
  return html`<select aria-label=${label} value=${value} onChange=${(event) => onChange(event.currentTarget.value)}>
    ${options.map(([name, text]) => html`<option value=${name} selected=${name === value}>${text}</option>`)}
  </select>`;
}

/**
 * A button that opens a small panel; a click elsewhere and Escape close it.
 * @param {{label: string, icon: Icons, children: (close: () => void) => Content}} props
 */
export function Menu({ label, icon, children }) {
  const [open, setOpen] = useState(false);
  const element = useRef(/** @type {HTMLDivElement | null} */ (null));
  useEffect(() => {
    if (!open) return undefined;
    const clicked = (/** @type {MouseEvent} */ event) => {
      if (!(event.target instanceof Node && element.current?.contains(event.target)))
        setOpen(false);
    };
    const typed = (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && setOpen(false);
    addEventListener("mousedown", clicked);
    addEventListener("keydown", typed);
    return () => {
      removeEventListener("mousedown", clicked);
      removeEventListener("keydown", typed);
    };
  }, [open]);
  return html`<div class="menu" ref=${element}>
    <button
      type="button"
      class="button quiet"
      aria-expanded=${open}
      aria-label=${label}
      title=${label}
      onClick=${() => setOpen(!open)}
    >
      <${Icon} name=${icon} />
    </button>
    ${open && html`<div class="menu-panel right">${children(() => setOpen(false))}</div>`}
  </div>`;
}

/** Lines of code with a button that copies them. @param {{text: string}} props */
export function Code({ text }) {
  return html`<div class="code">
    <pre tabindex="0">${text}</pre>
    <${Button} icon="copy" label="Copy" quiet onClick=${() => copy(text)} />
  </div>`;
}

/** Copy to the clipboard, also where the page is not served by HTTPS. @param {string} text */
async function copy(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say("Copied.");
}

// Strokes on a grid of 16 x 16.
const PATHS = {
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.2l7.5 4.8L5 12.8z",
  stop: "M4 4h8v8H4z",
  copy: "M6 6h7v7H6zM3 10V3h7",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5M6.8 7v3.6M9.2 7v3.6",
  download: "M8 3v7M5 7.5L8 10.5l3-3M3.5 13h9",
  search: "M7 11.5a4.5 4.5 0 1 1 0-9 4.5 4.5 0 0 1 0 9zM10.3 10.3L13.5 13.5",
  close: "M4 4l8 8M12 4l-8 8",
  plus: "M8 3.5v9M3.5 8h9",
  minus: "M3.5 8h9",
  moon: "M12.8 9.6A5.2 5.2 0 0 1 6.4 3.2 5.2 5.2 0 1 0 12.8 9.6z",
  sun: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6zM8 1.5v1.4M8 13.1v1.4M1.5 8h1.4M13.1 8h1.4M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  columns: "M3 3.5h10v9H3zM6.3 3.5v9M9.7 3.5v9",
  pin: "M6 2.5h4l-.6 4L12 9H4l2.6-2.5zM8 9v4.5",
  edit: "M3 13l.7-2.8 7-7 2.1 2.1-7 7zM9.4 4.5l2.1 2.1",
  compare: "M3 12.5V8M6.3 12.5V3.5M9.7 12.5V6M13 12.5V9.5",
  experiment: "M6.5 2.5v4L3 13.2h10L9.5 6.5v-4M5.5 2.5h5M5 10h6",
  refresh: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v2.3h-2.3",
  user: "M8 8a2.6 2.6 0 1 0 0-5.2A2.6 2.6 0 0 0 8 8zM3 13.5c.6-2.6 2.5-4 5-4s4.4 1.4 5 4",
  warning: "M8 2.5l6 10.5H2zM8 6.5v3M8 11v.4",
  check: "M3.5 8.5l3 3 6-7",
  clock: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11zM8 5v3.2l2.2 1.3",
  tag: "M3 3h4.6L13 8.4 8.4 13 3 7.6zM5.4 5.4v.01",
  reset: "M3 8a5 5 0 1 0 1.6-3.7M3 2.5v2.3h2.3",
};

/** @typedef {keyof typeof PATHS} Icons */
/** A decorative icon; the element around it has the name. @param {{name: Icons}} props */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}
