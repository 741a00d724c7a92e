import { html } from "../vendor.js";

/** @typedef {{address: string, columns: number}} Sheet thumbnails of 64 pixels, row by row */

/**
 * A thumbnail of a sheet; `--side`, a length, is its size.
 * @param {{sheet: Sheet, index: number, name: string}} props
 */
export function Thumbnail({ sheet, index, name }) {
  const style = {
    "--columns": sheet.columns,
    "--column": index % sheet.columns,
    "--row": Math.floor(index / sheet.columns),
    backgroundImage: `url("${sheet.address}")`,
  };
  return html`<span class="thumbnail" role="img" aria-label=${name} title=${name} style=${style}></span>`;
}
