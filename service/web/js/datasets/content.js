// The content of an upload: one archive or table as it is, or images as a tar that is made while it is sent.

import { Problem } from "../core/api.js";
import { count } from "../core/format.js";
import { session } from "../core/session.js";

/** The endings of files that are images, and of those that hold images. */
const { image_extensions: IMAGES, upload_endings: ARCHIVES } = /** @type {Api.SessionView} */ (
  session.get()
);
const RECORD = 512;
// A number of a tar's header has eleven octal digits.
const LARGEST = 8 ** 11 - 1;
const encoder = new TextEncoder();

/**
 * The content of the chosen files. They are read only while it is sent.
 * @typedef {{name: string, filename: string, size: number, read: (start: number, stop: number) => Promise<ArrayBuffer>,
 *   fingerprint: string, images: number | null, leftOut: number}} Content
 *   `name` of the folder or file, `fingerprint` changes when the content does, `images` is null for an archive
 * @param {Iterable<File>} chosen of a folder, several images, or one archive
 * @returns {Content}
 */
export function contentOf(chosen) {
  const files = [...chosen];
  const [first] = files;
  if (files.length === 1 && !first.webkitRelativePath && isArchive(first.name)) {
    return {
      name: first.name.replace(/\.[^.]*$/, ""),
      filename: first.name
        .replace(/[^A-Za-z0-9._+-]/g, "_")
        .slice(-100)
        .replace(/^[.+-]+/, ""),
      size: first.size,
      read: (start, stop) => first.slice(start, stop).arrayBuffer(),
      fingerprint: `page file ${first.size} ${first.lastModified} ${fnv1a(first.name)}`,
      images: null,
      leftOut: 0,
    };
  }
  const images = files
    .map((file) => ({ path: pathOf(file), file }))
    .filter(({ path }) => isImage(path));
  if (!images.length) {
    const chosenFiles = files.length
      ? `${count(files.length)} ${files.length === 1 ? "file" : "files"}, none of which is an image`
      : "no files";
    const detail = `The selection has ${chosenFiles}. Choose a folder of images, several images, or one ${ARCHIVES.join(", ")} file.`;
    throw new Problem({ type: "no-images", title: "No images", status: 0, detail });
  }
  // Browsers list a folder in different orders, and a resumed upload must have the same content.
  images.sort((one, other) => (one.path < other.path ? -1 : 1));
  const list = images
    .map(({ path, file }) => `${path}\0${file.size}\0${file.lastModified}\0`)
    .join("");
  return {
    name: first.webkitRelativePath ? first.webkitRelativePath.split("/")[0] : "",
    filename: "images.tar",
    ...tarOf(images),
    fingerprint: `page folder ${images.length} ${fnv1a(list)}`,
    images: images.length,
    leftOut: files.length - images.length,
  };
}

const isArchive = (/** @type {string} */ name) =>
  ARCHIVES.some((ending) => name.toLowerCase().endsWith(ending));

/** The path of a file in the chosen folder. @param {File} file */
const pathOf = (file) => file.webkitRelativePath.split("/").slice(1).join("/") || file.name;

/**
 * Whether a path is that of an image: not hidden, as at the ingest of a folder, and a name that a tar can have.
 * @param {string} path
 */
function isImage(path) {
  const ending = /\.([^./]+)$/.exec(path)?.[1].toLowerCase() ?? "";
  return (
    IMAGES.includes(ending) &&
    !path.split("/").some((part) => part.startsWith(".")) &&
    path.isWellFormed()
  );
}

/** @typedef {{path: string, file: File}} Image */
/** Return the size of a tar (POSIX.1-2001) of the images, and a function that reads any range of it. @param {Image[]} images */
function tarOf(images) {
  const partsOf = (/** @type {Image} */ { path, file }) => [
    ...headerOf(path, file.size),
    file,
    padding(file.size),
  ];
  const starts = new Float64Array(images.length + 1);
  images.forEach((image, at) => {
    starts[at + 1] = partsOf(image).reduce(
      (end, part) => end + (part instanceof File ? part.size : part.length),
      starts[at],
    );
  });
  const end = starts[images.length];
  const read = (/** @type {number} */ start, /** @type {number} */ stop) => {
    const first = lastIndexAtMost(starts, start);
    const last = lastIndexAtMost(starts, stop - 1);
    const parts = images.slice(first, last + 1).flatMap(partsOf);
    if (stop > end) parts.push(new Uint8Array(2 * RECORD));
    return new Blob(parts).slice(start - starts[first], stop - starts[first]).arrayBuffer();
  };
  return { size: end + 2 * RECORD, read };
}

/** Return the index of the last of the sorted numbers that is at most `value`. @param {Float64Array} sorted @param {number} value */
function lastIndexAtMost(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    [low, high] = sorted[middle] <= value ? [middle, high] : [low, middle];
  }
  return low;
}

const padding = (/** @type {number} */ size) => new Uint8Array((RECORD - (size % RECORD)) % RECORD);

/** Return the header of a member, preceded by a pax header if its name or size does not fit. @param {string} path @param {number} size */
function headerOf(path, size) {
  const records = [];
  if (encoder.encode(path).length > 100 || /[^\x20-\x7e]/.test(path))
    records.push(paxRecord("path", path));
  if (size > LARGEST) records.push(paxRecord("size", size));
  if (!records.length) return [ustarHeader(path, size, "0")];
  const extended = encoder.encode(records.join(""));
  return [
    ustarHeader("path", extended.length, "x"),
    extended,
    padding(extended.length),
    ustarHeader("image", Math.min(size, LARGEST), "0"),
  ];
}

/** Return a record of a pax header, a line that begins with its own length in bytes. @param {string} key @param {unknown} value */
function paxRecord(key, value) {
  const rest = ` ${key}=${value}\n`;
  const length = encoder.encode(rest).length;
  let digits = 1;
  while (String(length + digits).length > digits) digits += 1;
  return `${length + digits}${rest}`;
}

/** @param {string} name @param {number} size @param {string} type */
function ustarHeader(name, size, type) {
  const header = new Uint8Array(RECORD);
  const put = (/** @type {number} */ offset, /** @type {string} */ text) =>
    header.set(encoder.encode(text), offset);
  const octal = (/** @type {number} */ value, /** @type {number} */ digits) =>
    value.toString(8).padStart(digits, "0");
  put(0, name);
  put(100, "0000644\0" + "0000000\0" + "0000000\0");
  put(124, `${octal(size, 11)}\0${octal(0, 11)}\0`);
  put(148, " ".repeat(8));
  put(156, type);
  put(257, "ustar\0" + "00");
  const sum = header.reduce((total, byte) => total + byte, 0);
  put(148, `${octal(sum, 6)}\0 `);
  return header;
}

/** Return a hash: 32-bit FNV-1a from two offset bases. Without TLS, browsers have no `crypto.subtle`. @param {string} text */
function fnv1a(text) {
  const bytes = encoder.encode(text);
  const hash = (/** @type {number} */ basis) =>
    bytes.reduce((state, byte) => Math.imul(state ^ byte, 0x01000193), basis) >>> 0;
  return [0x811c9dc5, 0x5bd1e995]
    .map((basis) => hash(basis).toString(16).padStart(8, "0"))
    .join("");
}
