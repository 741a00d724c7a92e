// Points on a canvas: with WebGL2, or without it in two dimensions.

/**
 * @typedef {{x: number, y: number, scale: number}} Camera
 *   the place in the middle, and how many pixels a unit is
 * @typedef {{
 *   name: string,
 *   places: (from: Float32Array<ArrayBuffer>, to: Float32Array<ArrayBuffer>) => void,
 *   colors: (rgba: Uint8Array<ArrayBuffer>) => void,
 *   draw: (camera: Camera, size: number, share: number) => void,
 * }} Layer
 *   `places` takes x and y in turn, before and after a move, of which `share` has been done; alpha 0 hides a point
 */

const VERTEX = `#version 300 es
in vec2 before; in vec2 after; in vec4 color;
uniform vec2 middle; uniform vec2 factor; uniform float size; uniform float share;
out vec4 shade;
void main() {
  gl_Position = vec4((mix(before, after, share) - middle) * factor, 0.0, 1.0);
  gl_PointSize = size;
  shade = color;
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec4 shade; uniform float size; out vec4 pixel;
void main() {
  float away = length(gl_PointCoord - 0.5) * size;
  float alpha = shade.a * clamp(size * 0.5 - away, 0.0, 1.0);
  pixel = vec4(shade.rgb * alpha, alpha);
}`;

/** The layer of a canvas that has none yet. @param {HTMLCanvasElement} canvas @returns {Layer} */
export function pointLayer(canvas) {
  const gl = canvas.getContext("webgl2", { antialias: false });
  return gl ? accelerated(canvas, gl) : flat(canvas);
}

/** @param {HTMLCanvasElement} canvas @param {WebGL2RenderingContext} gl @returns {Layer} */
function accelerated(canvas, gl) {
  const program = gl.createProgram();
  const add = (/** @type {WebGLShader | null} */ shader, /** @type {string} */ source) => {
    if (!shader) return; // The context was lost: the canvas is about to be replaced.
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  };
  add(gl.createShader(gl.VERTEX_SHADER), VERTEX);
  add(gl.createShader(gl.FRAGMENT_SHADER), FRAGMENT);
  gl.linkProgram(program);
  gl.useProgram(program);
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  let count = 0;
  const buffers = new Map();
  /** @param {string} name @param {BufferSource} data @param {number} parts @param {number} kind @param {boolean} isShare */
  const fill = (name, data, parts, kind, isShare) => {
    const place = gl.getAttribLocation(program, name);
    if (!buffers.has(name)) buffers.set(name, gl.createBuffer());
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers.get(name));
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, parts, kind, isShare, 0, 0);
  };
  const uniform = (/** @type {string} */ name) => gl.getUniformLocation(program, name);
  return {
    name: "webgl2",
    places(from, to) {
      count = to.length / 2;
      fill("before", from, 2, gl.FLOAT, false);
      fill("after", to, 2, gl.FLOAT, false);
    },
    colors: (rgba) => fill("color", rgba, 4, gl.UNSIGNED_BYTE, true),
    draw({ x, y, scale }, size, share) {
      const { width, height } = canvas;
      gl.viewport(0, 0, width, height);
      gl.clear(gl.COLOR_BUFFER_BIT);
      gl.uniform2f(uniform("middle"), x, y);
      gl.uniform2f(uniform("factor"), (2 * scale) / width, (2 * scale) / height);
      gl.uniform1f(uniform("size"), size);
      gl.uniform1f(uniform("share"), share);
      gl.drawArrays(gl.POINTS, 0, count);
    },
  };
}

/** @param {HTMLCanvasElement} canvas @returns {Layer} */
function flat(canvas) {
  const context = canvas.getContext("2d");
  let [before, after, shades] = [new Float32Array(), new Float32Array(), new Uint8Array()];
  return {
    name: "2d",
    places(from, to) {
      [before, after] = [from, to];
    },
    colors(rgba) {
      shades = rgba;
    },
    draw({ x, y, scale }, size, share) {
      const { width, height } = canvas;
      if (!context) return;
      context.clearRect(0, 0, width, height);
      for (let index = 0; index < after.length / 2; index++) {
        const [red, green, blue, alpha] = shades.subarray(4 * index, 4 * index + 4);
        if (!alpha) continue;
        const at = (/** @type {number} */ part) =>
          before[2 * index + part] + (after[2 * index + part] - before[2 * index + part]) * share;
        context.fillStyle = `rgb(${red} ${green} ${blue} / ${alpha / 255})`;
        context.beginPath();
        context.arc(
          width / 2 + (at(0) - x) * scale,
          height / 2 - (at(1) - y) * scale,
          size / 2,
          0,
          7,
        );
        context.fill();
      }
    },
  };
}
