import { html, useEffect, useRef, useState } from "../vendor.js";
import { store, useStore } from "../core/store.js";
import { Button } from "./button.js";

/** A modal dialog; Escape and a click beside it close it. */
export function Dialog({ title, onClose, children, footer, wide }) {
  const element = useRef(null);
  useEffect(() => {
    element.current.showModal();
  }, []);
  const clicked = (event) => event.target === element.current && onClose();
  return html`<dialog
    ref=${element}
    class=${wide ? "wide" : ""}
    aria-label=${title}
    onClose=${onClose}
    onMouseDown=${clicked}
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

const question = store(/** @type {object | null} */ (null));

/**
 * Ask before something that cannot be undone; resolve to whether the person agrees.
 * @param {{title: string, text: string, action: string, danger?: boolean}} asked
 * @returns {Promise<boolean>}
 */
export function confirm(asked) {
  return new Promise((resolve) => question.set({ ...asked, resolve }));
}

/** Where `confirm` shows its question. */
export function Confirmation() {
  const asked = useStore(question);
  const [turn, setTurn] = useState(0);
  if (!asked) return null;
  const answer = (agreed) => {
    asked.resolve(agreed);
    question.set(null);
    setTurn(turn + 1);
  };
  return html`<${Dialog}
    key=${turn}
    title=${asked.title}
    onClose=${() => answer(false)}
    footer=${html`<${Button} label="Keep" onClick=${() => answer(false)} />
      <${Button} label=${asked.action} kind=${asked.danger ? "danger" : "primary"} onClick=${() => answer(true)} />`}
  >
    <p>${asked.text}</p>
  <//>`;
}
