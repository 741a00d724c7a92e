import { count, percent } from "../core/format.js";
import { COLORS } from "../core/theme.js";
import { Button } from "../ui/controls.js";
import { Thumbnail } from "../ui/thumbnail.js";
import { html, useMemo, useState } from "../vendor.js";
import { MapCanvas } from "./map-canvas.js";

/** Thumbnails of a selection that are shown. */
const MOST = 240;

/**
 * @typedef {{keys: string[], held_out: number, labels: (number | null)[], classes: string[] | null, columns: number}} Images
 *   those of `thumbnails.json`, held-out ones first
 * @typedef {{step: number, epoch: number, x: number[], y: number[], explained: number[]}} Places of `map.json`
 * @typedef {{name: string, number: number, color: string}} Class
 * @typedef {{name?: string, title: string, indices: number[]}} Selection
 */
/**
 * The features in two dimensions at the chosen evaluation: hover for an image, choose several by a line around them.
 * @param {{images: Images, shown: Places, sheet: import("../ui/thumbnail.js").Sheet}} props
 */
export function EmbeddingMap({ images, shown, sheet }) {
  const [chosen, setChosen] = useState(/** @type {Selection | null} */ (null));
  const [isLasso, setLasso] = useState(false);
  const places = useMemo(() => placesOf(shown), [shown]);
  const classes = useMemo(() => largest(images), [images]);
  const trained = images.keys.length - images.held_out;
  const select = (/** @type {number[]} */ indices) => {
    setLasso(false);
    setChosen(
      indices.length ? { title: `${count(indices.length)} images inside the line`, indices } : null,
    );
  };
  const pick = (/** @type {Class} */ { name, number }) => {
    const indices = images.keys.flatMap((_, index) =>
      images.labels[index] === number ? [index] : [],
    );
    setChosen(
      chosen?.name === name
        ? null
        : { name, title: `${count(indices.length)} images of ${name}`, indices },
    );
  };
  return html`<section class="card">
    <header class="card-head">
      <h2>Map of the features</h2>
      <div class="segmented" role="group" aria-label="What dragging does">
        <${Button} label="Move" pressed=${!isLasso} onClick=${() => setLasso(false)} />
        <${Button} label="Choose" pressed=${isLasso} title="Draw a line around images (also with Shift)" onClick=${() => setLasso(true)} />
      </div>
    </header>
    <p class="muted small">
      Principal components with ${shown.explained.map((share) => percent(share, 0)).join(" and ")} of the variance: ${count(images.held_out)} held-out images${trained ? `, and ${count(trained)} training images, lighter` : ""}.
    </p>
    <${MapCanvas} images=${images} places=${places} classes=${classes} chosen=${chosen} isLasso=${isLasso} sheet=${sheet} onChoose=${select} />
    ${
      classes.length > 0 &&
      html`<div class="chips legend" role="group" aria-label="Classes">
      ${classes.map(
        (each) =>
          html`<button type="button" class="filter-chip" aria-pressed=${chosen?.name === each.name} style=${{ "--mark": `var(${each.color})` }} onClick=${() => pick(each)}><span class="mark"></span>${each.name}</button>`,
      )}
      ${images.classes && images.classes.length > classes.length && html`<span class="muted small">and ${count(images.classes.length - classes.length)} more classes in gray</span>`}
    </div>`
    }
    ${
      chosen &&
      html`<div class="chosen" role="region" aria-label="Chosen images">
      <header class="card-head"><h3>${chosen.title}</h3><${Button} icon="close" label="Choose none" quiet onClick=${() => setChosen(null)} /></header>
      <div class="grid" tabindex="0" role="group" aria-label="Thumbnails">${chosen.indices.slice(0, MOST).map((index) => html`<${Thumbnail} key=${index} sheet=${sheet} index=${index} name=${captionOf(images, index)} />`)}</div>
      ${chosen.indices.length > MOST && html`<p class="muted small">The first ${MOST} of ${count(chosen.indices.length)}.</p>`}
    </div>`
    }
  </section>`;
}

/** Key and class of an image. @param {Images} images @param {number} index */
export function captionOf(images, index) {
  const name = images.classes?.[images.labels?.[index] ?? -1];
  const key = images.keys[index];
  return name === undefined || key.startsWith(`${name}/`) ? key : `${key}, ${name}`;
}

/** @param {Places} places */
function placesOf({ x, y }) {
  const places = new Float32Array(2 * x.length);
  for (let index = 0; index < x.length; index++)
    [places[2 * index], places[2 * index + 1]] = [x[index], y[index]];
  return places;
}

/** The largest classes, which have a color each. @param {Images} images @returns {Class[]} */
function largest({ classes, labels }) {
  if (!classes) return [];
  const sizes = classes.map(() => 0);
  for (const number of labels) if (number !== null) sizes[number] += 1;
  const order = classes
    .map((name, number) => ({ name, number }))
    .sort((one, other) => sizes[other.number] - sizes[one.number] || one.number - other.number);
  return order
    .slice(0, COLORS.length - 1)
    .map((each, index) => ({ ...each, color: COLORS[index] }));
}
