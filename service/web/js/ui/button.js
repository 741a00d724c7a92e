import { html, useState } from "../vendor.js";
import { Icon } from "./icon.js";

/** @typedef {import("./icon.js").Icons} Icons */
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
