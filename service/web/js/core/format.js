// Numbers, times and sizes as text.

import { metrics } from "./session.js";

const DASH = "–";

/** A measured value: four significant digits. @param {number | null | undefined} value */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

/** A count, with separators. @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? DASH : Number(value).toLocaleString("en");
}

/** A share as percent. @param {number | null | undefined} value */
export function percent(value, digits = 1) {
  return value === null || value === undefined ? DASH : `${(value * 100).toFixed(digits)} %`;
}

/** Whether a metric is a share from 0 to 1, which people read in percent. @param {string} name */
export const isShare = (name) => /(_top\d+|recall_at_\d+)$|^(verification_|tar_at_far_)/.test(name);

/** The value of a metric. @param {string} name @param {number | null | undefined} value */
export function figure(name, value, digits = 1) {
  return isShare(name) ? percent(value, digits) : number(value);
}

/** Bytes, in units of 1000. @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  // By the rounded value: 999,999 bytes are 1.00 MB.
  const unit =
    value < 1000 ? 0 : Math.min(5, Math.floor(Math.log10(Number(value.toPrecision(3))) / 3));
  const scaled = value / 1000 ** unit;
  return `${unit === 0 ? scaled : scaled.toPrecision(3)} ${units[unit]}`;
}

/** A duration in its two largest units. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return DASH;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min${whole % 60 && minutes < 10 ? ` ${whole % 60} s` : ""}`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  return `${Math.floor(hours / 24)} d${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

/** The bounds of an expected time. @param {{low: number, high: number} | null} seconds */
export function span(seconds) {
  return seconds
    ? `${duration(seconds.low)} to ${duration(seconds.high)}`
    : "not known before a first job";
}

/** How long ago, or in how long. @param {string | null | undefined} iso */
export function ago(iso) {
  if (!iso) return DASH;
  const seconds = (Date.now() - Date.parse(iso)) / 1000;
  if (Math.abs(seconds) < 10) return "now";
  const text = duration(Math.abs(seconds)).split(" ").slice(0, 2).join(" ");
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

/** A local date and time. @param {string | null | undefined} iso */
export function moment(iso) {
  if (!iso) return DASH;
  const at = new Date(iso);
  const pad = (/** @type {number} */ value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(iso)}`;
}

/** A local time of day, to the second. @param {string} iso */
export function clock(iso) {
  return new Date(iso).toLocaleTimeString("en-GB");
}

/** The name of a metric for people. @param {string} name */
export function label(name) {
  return metrics()[name] ?? name.replace(/^recall_at_/, "R@").replaceAll("_", " ");
}
