import { html, useEffect, useRef, useState } from "../vendor.js";
import { store, useStore } from "../core/store.js";
import { Button } from "./controls.js";

/**
 * A modal dialog; Escape and a click beside it close it.
 * @param {{title: string, onClose: () => void, children: Content, footer?: Content, wide?: boolean}} props
 */
export function Dialog({ title, onClose, children, footer, wide }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => element.current?.showModal(), []);
  return html`<dialog
    ref=${element}
    class=${wide ? "wide" : ""}
    aria-label=${title}
    onClose=${onClose}
    onMouseDown=${(event) => event.target === element.current && onClose()}
  >
    <div class="dialog-body">
      <header>
        <h2>${title}</h2>
        <${Button} icon="close" label="Close" quiet onClick=${onClose} />
      </header>
      ${children}
      ${footer && html`<footer>${footer}</footer>`}
    </div>
  </dialog>`;
}

/** @typedef {{title: string, text: string, action: string, kind: string}} Question */
const open = store(/** @type {Question & {resolve: (agreed: boolean) => void} | null} */ (null));

/**
 * Ask before something that cannot be undone; resolve to whether the person agrees.
 * @param {string} title @param {string} text @param {string} action what the button that agrees says
 * @returns {Promise<boolean>}
 */
export function confirm(title, text, action, kind = "danger") {
  return new Promise((resolve) => open.set({ title, text, action, kind, resolve }));
}

/** Where `confirm` shows its question. */
export function Confirmation() {
  const question = useStore(open);
  const [number, setNumber] = useState(0);
  if (!question) return null;
  const answer = (/** @type {boolean} */ agreed) => {
    question.resolve(agreed);
    open.set(null);
    setNumber(number + 1);
  };
  return html`<${Dialog}
    key=${number}
    title=${question.title}
    onClose=${() => answer(false)}
    footer=${html`<${Button} label="Keep" onClick=${() => answer(false)} />
      <${Button} label=${question.action} kind=${question.kind} onClick=${() => answer(true)} />`}
  >
    <p>${question.text}</p>
  <//>`;
}
