import { html, useEffect, useRef, useState } from "../vendor.js";
import { Icon } from "./icon.js";

/**
 * A button that opens a small panel; a click elsewhere and Escape close it.
 * @param {{label: string, icon: import("./icon.js").Icons, children: (close: () => void) => Content}} props
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
