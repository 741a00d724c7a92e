import { read, write } from "../core/store.js";
import { Menu } from "../ui/menu.js";
import { html, useState } from "../vendor.js";
import { COLUMNS } from "./columns.js";

const KEY = "dasl-columns";

/** The columns that this person has chosen; the name always is one. */
export function useColumns() {
  const [ids, setIds] = useState(saved);
  return {
    shown: COLUMNS.filter((column) => column.id === "name" || ids.includes(column.id)),
    toggle(/** @type {string} */ id) {
      const next = ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id];
      write(KEY, next.join(","));
      setIds(next);
    },
  };
}

function saved() {
  return (
    read(KEY)?.split(",") ?? COLUMNS.filter((column) => !column.hidden).map((column) => column.id)
  );
}

/** A menu of all columns. @param {{columns: ReturnType<typeof useColumns>}} props */
export function ColumnChoice({ columns }) {
  const shown = new Set(columns.shown.map((column) => column.id));
  return html`<${Menu} label="Columns" icon="columns">
    ${() =>
      COLUMNS.filter((column) => column.id !== "name").map(
        (column) => html`<label class="menu-item check">
        <input type="checkbox" checked=${shown.has(column.id)} onChange=${() => columns.toggle(column.id)} />${column.title}
      </label>`,
      )}
  <//>`;
}
