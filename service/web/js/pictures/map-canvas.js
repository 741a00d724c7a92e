import { useStore } from "../core/store.js";
import { rgbOf, theme } from "../core/theme.js";
import { Button } from "../ui/controls.js";
import { Thumbnail } from "../ui/thumbnail.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor.js";
import { captionOf } from "./map.js";
import { pointLayer } from "./points.js";

const MILLISECONDS = 450;
const REACH = 12;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * @typedef {import("./points.js").Camera} Camera
 * @typedef {[number, number]} Point
 * @typedef {{layer: import("./points.js").Layer, camera: Camera, places: Float32Array<ArrayBuffer>, began: number, frame: number,
 *   drag: {x: number, y: number, line: Point[] | null} | null}} State
 */
/**
 * The map itself: drag or arrows move it, the wheel (with Ctrl, or while it has the focus), + and - zoom it.
 * @param {{images: import("./map.js").Images, places: Float32Array<ArrayBuffer>, classes: import("./map.js").Class[],
 *   chosen: import("./map.js").Selection | null, isLasso: boolean, sheet: import("../ui/thumbnail.js").Sheet,
 *   onChoose: (indices: number[]) => void}} props
 */
export function MapCanvas({ images, places, classes, chosen, isLasso, sheet, onChoose }) {
  // Elements and layer are there before anything reads them: effects and handlers run after the first rendering.
  const box = useRef(/** @type {HTMLDivElement} */ (/** @type {unknown} */ (null)));
  const canvas = useRef(/** @type {HTMLCanvasElement} */ (/** @type {unknown} */ (null)));
  const state = useRef(
    /** @type {State} */ ({
      places,
      began: 0,
      camera: { x: 0, y: 0, scale: 0 },
      frame: 0,
      drag: null,
    }),
  );
  const [near, setNear] = useState(
    /** @type {{index: number, x: number, y: number} | null} */ (null),
  );
  const [line, setLine] = useState(/** @type {Point[] | null} */ (null));
  const [canvasNumber, setCanvasNumber] = useState(0);
  const shade = useStore(theme);
  const colors = useMemo(
    () => colorsOf(images, classes, chosen),
    [images, classes, chosen, shade, canvasNumber],
  );

  const draw = () => {
    const { camera, layer, began } = state.current;
    cancelAnimationFrame(state.current.frame);
    state.current.frame = requestAnimationFrame((now) => {
      if (!canvas.current || !camera.scale) return;
      const share = calm.matches ? 1 : Math.min(1, (now - began) / MILLISECONDS);
      const size = Math.max(3, Math.min(9, 300 / Math.sqrt(places.length))) * devicePixelRatio;
      layer.draw({ ...camera, scale: camera.scale * devicePixelRatio }, size, share * (2 - share));
      if (share < 1) draw();
    });
  };
  const whole = () => {
    state.current.camera = around(places, box.current);
    draw();
  };
  const zoom = (
    /** @type {number} */ factor,
    x = box.current.clientWidth / 2,
    y = box.current.clientHeight / 2,
  ) => {
    const { camera } = state.current;
    const at = placeOf(camera, box.current, x, y);
    const scale = camera.scale * factor;
    state.current.camera = {
      scale,
      x: at[0] - (x - box.current.clientWidth / 2) / scale,
      y: at[1] + (y - box.current.clientHeight / 2) / scale,
    };
    draw();
  };
  const move = (/** @type {number} */ x, /** @type {number} */ y) => {
    const { camera } = state.current;
    state.current.camera = {
      ...camera,
      x: camera.x - x / camera.scale,
      y: camera.y + y / camera.scale,
    };
    draw();
  };

  useEffect(() => {
    state.current.layer = pointLayer(canvas.current);
    canvas.current.dataset.renderer = state.current.layer.name;
    const observer = new ResizeObserver(() => {
      const { clientWidth, clientHeight } = box.current;
      [canvas.current.width, canvas.current.height] = [
        clientWidth * devicePixelRatio,
        clientHeight * devicePixelRatio,
      ];
      if (state.current.camera.scale) draw();
      else whole();
    });
    observer.observe(box.current);
    const wheel = (/** @type {WheelEvent} */ event) => {
      if (!event.ctrlKey && document.activeElement !== box.current) return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 400), ...placeIn(box.current, event));
    };
    box.current.addEventListener("wheel", wheel, { passive: false });
    return () => {
      observer.disconnect();
      box.current?.removeEventListener("wheel", wheel);
      cancelAnimationFrame(state.current.frame);
    };
  }, [canvasNumber]);
  useEffect(() => {
    const before = state.current.places;
    state.current.layer.places(before, places);
    if (before !== places)
      Object.assign(state.current, {
        places,
        began: performance.now(),
        camera: around(places, box.current),
      });
    draw();
  }, [places, canvasNumber]);
  useEffect(() => {
    state.current.layer.colors(colors);
    draw();
  }, [colors, canvasNumber]);

  const point = (/** @type {PointerEvent} */ event) => {
    const [x, y] = placeIn(box.current, event);
    const drag = state.current.drag;
    if (drag?.line) {
      drag.line = [...drag.line, [x, y]];
      setLine(drag.line);
    } else if (drag) {
      move(x - drag.x, y - drag.y);
      [drag.x, drag.y] = [x, y];
    } else {
      const index = nearest(
        places,
        placeOf(state.current.camera, box.current, x, y),
        REACH / state.current.camera.scale,
      );
      setNear(index < 0 ? null : { index, x, y });
    }
  };
  const press = (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0 || (event.target instanceof Element && event.target.closest("button")))
      return;
    box.current.setPointerCapture(event.pointerId);
    const [x, y] = placeIn(box.current, event);
    state.current.drag = { x, y, line: isLasso || event.shiftKey ? [[x, y]] : null };
    setNear(null);
  };
  const release = () => {
    const drawn = state.current.drag?.line;
    if (drawn && drawn.length > 2)
      onChoose(
        inside(
          places,
          drawn.map(([x, y]) => placeOf(state.current.camera, box.current, x, y)),
        ),
      );
    state.current.drag = null;
    setLine(null);
  };
  /** @type {Record<string, () => void>} */
  const keys = {
    "+": () => zoom(1.4),
    "=": () => zoom(1.4),
    "-": () => zoom(1 / 1.4),
    0: whole,
    ArrowLeft: () => move(50, 0),
    ArrowRight: () => move(-50, 0),
    ArrowUp: () => move(0, 50),
    ArrowDown: () => move(0, -50),
  };
  const typed = (/** @type {KeyboardEvent} */ event) => {
    if (!keys[event.key] || event.target !== box.current) return;
    event.preventDefault();
    keys[event.key]();
  };
  return html`<div
    ref=${box}
    class=${`map ${isLasso ? "lasso" : ""}`}
    tabindex="0"
    role="group"
    aria-label="Map: arrows move it, plus and minus zoom, 0 shows all"
    onPointerMove=${point}
    onPointerDown=${press}
    onPointerUp=${release}
    onPointerCancel=${release}
    onPointerLeave=${() => setNear(null)}
    onDblClick=${whole}
    onKeyDown=${typed}
  >
    <canvas key=${canvasNumber} ref=${canvas} role="img" aria-label=${`${images.keys.length} images by their features`} onwebglcontextlost=${() => setCanvasNumber(canvasNumber + 1)}></canvas>
    ${line && html`<svg aria-hidden="true"><polygon points=${line.map((at) => at.join()).join(" ")} /></svg>`}
    ${
      near &&
      html`<div class="map-tip" style=${{ transform: `translate(${Math.max(4, Math.min(near.x + 14, box.current.clientWidth - 204))}px, ${Math.max(4, Math.min(near.y + 14, box.current.clientHeight - 96))}px)` }}>
      <${Thumbnail} sheet=${sheet} index=${near.index} name=${captionOf(images, near.index)} /><span>${captionOf(images, near.index)}</span>
    </div>`
    }
    <div class="map-buttons">
      <${Button} icon="plus" label="Zoom in" quiet onClick=${() => zoom(1.4)} /><${Button} icon="minus" label="Zoom out" quiet onClick=${() => zoom(1 / 1.4)} /><${Button} icon="reset" label="Show all" quiet onClick=${whole} />
    </div>
  </div>`;
}

/** @param {HTMLElement} box @param {MouseEvent} event @returns {Point} */
function placeIn(box, event) {
  const { left, top } = box.getBoundingClientRect();
  return [event.clientX - left - box.clientLeft, event.clientY - top - box.clientTop];
}

/** @param {Camera} camera @param {HTMLElement} box @param {number} left @param {number} top @returns {Point} */
const placeOf = ({ x, y, scale }, box, left, top) => [
  x + (left - box.clientWidth / 2) / scale,
  y - (top - box.clientHeight / 2) / scale,
];

/** The camera that shows all places. @param {Float32Array<ArrayBuffer>} places @param {HTMLElement} box @returns {Camera} */
function around(places, box) {
  let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let index = 0; index < places.length; index += 2) {
    [left, right] = [Math.min(left, places[index]), Math.max(right, places[index])];
    [bottom, top] = [Math.min(bottom, places[index + 1]), Math.max(top, places[index + 1])];
  }
  const scale =
    0.92 * Math.min(box.clientWidth / (right - left || 1), box.clientHeight / (top - bottom || 1));
  return { x: (left + right) / 2, y: (bottom + top) / 2, scale };
}

/** @param {Float32Array<ArrayBuffer>} places @param {Point} point @param {number} reach */
function nearest(places, [x, y], reach) {
  let [best, least] = [-1, reach * reach];
  for (let index = 0; index < places.length; index += 2) {
    const away = (places[index] - x) ** 2 + (places[index + 1] - y) ** 2;
    if (away < least) [best, least] = [index / 2, away];
  }
  return best;
}

/** The points inside a polygon, by the even-odd rule. @param {Float32Array<ArrayBuffer>} places @param {Point[]} line */
function inside(places, line) {
  const found = [];
  for (let index = 0; index < places.length; index += 2) {
    const [x, y] = [places[index], places[index + 1]];
    let isIn = false;
    line.forEach(([left, bottom], at) => {
      const [right, top] = line[(at + 1) % line.length];
      if (bottom > y !== top > y && x < left + ((right - left) * (y - bottom)) / (top - bottom))
        isIn = !isIn;
    });
    if (isIn) found.push(index / 2);
  }
  return found;
}

/**
 * Held-out images in the color of their class, training images lighter; what is not chosen is faint.
 * @param {import("./map.js").Images} images
 * @param {import("./map.js").Class[]} classes
 * @param {import("./map.js").Selection | null} chosen
 */
function colorsOf(images, classes, chosen) {
  const byClass = new Map(classes.map(({ number, color }) => [number, rgbOf(color)]));
  const rest = rgbOf(classes.length ? "--c8" : "--c1");
  const picked = chosen && new Set(chosen.indices);
  const colors = new Uint8Array(4 * images.keys.length);
  images.keys.forEach((_, index) => {
    const alpha = index < images.held_out ? 235 : 110;
    const isFaint = picked ? !picked.has(index) : false;
    colors.set(
      [
        ...(byClass.get(images.labels?.[index] ?? -1) ?? rest),
        picked && !isFaint ? 255 : isFaint ? 26 : alpha,
      ],
      4 * index,
    );
  });
  return colors;
}
