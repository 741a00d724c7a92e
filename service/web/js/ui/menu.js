import { html, useEffect, useRef, useState } from "../vendor.js";
import { Icon } from "./icon.js";

/** A button that opens a small panel; a click elsewhere and Escape close it. */
export function Menu({ label, icon, children, quiet = true, align = "right" }) {
  const [open, setOpen] = useState(false);
  const element = useRef(null);
  useEffect(() => {
    if (!open) return undefined;
    const close = (event) => {
      if (event.type === "keydown" ? event.key === "Escape" : !element.current?.contains(event.target)) setOpen(false);
    };
    addEventListener("mousedown", close);
    addEventListener("keydown", close);
    return () => {
      removeEventListener("mousedown", close);
      removeEventListener("keydown", close);
    };
  }, [open]);
  return html`<div class="menu" ref=${element}>
    <button
      type="button"
      class=${`button ${quiet ? "quiet" : ""}`}
      aria-expanded=${String(open)}
      aria-label=${label}
      title=${label}
      onClick=${() => setOpen(!open)}
    >
      <${Icon} name=${icon} />${!quiet && html`<span>${label}</span>`}
    </button>
    ${open && html`<div class=${`menu-panel ${align}`}>${children(() => setOpen(false))}</div>`}
  </div>`;
}
