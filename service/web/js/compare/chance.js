import { label } from "../core/format.js";

/** Metrics that are the share of the held-out images that are right. */
const SHARES = /^(knn_top1|linear_top[15]|finetune_top[15]|recall_at_\d+|instance_recall_at_1)$/;
/** R@1 of views is measured on at most so many images, evenly spaced. */
const MOST_VIEWS = 4096;

/**
 * Whether a difference of two values of a metric may be chance, as of so few images, or as nothing says how much
 * the metric varies.
 * @param {string} metric @param {number} one @param {number} other
 * @param {number | null} images the number of held-out images, if it is the same and known
 */
export function mayBeChance(metric, one, other, images) {
  return (
    !SHARES.test(metric) ||
    !images ||
    Math.abs(one - other) < noise(one, other, imagesOf(metric, images))
  );
}

/**
 * What the values of several jobs do not tell, as sentences; `dasl compare` has the same.
 * @param {[string, number[]][]} metrics the values of each
 * @param {(number | null)[]} counts held-out images of each job
 */
export function remarks(metrics, counts) {
  const images = common(counts);
  if (new Set(counts).size > 1)
    return [
      "The jobs are evaluated on different numbers of images, so their metrics cannot be compared.",
    ];
  if (!images) return [];
  return metrics.flatMap(([metric, values]) => {
    const pairs = values.flatMap((one, index) =>
      values.slice(index + 1).map((other) => [one, other]),
    );
    const near = pairs.filter(
      ([one, other]) => SHARES.test(metric) && mayBeChance(metric, one, other, images),
    );
    if (!near.length) return [];
    const evaluated = imagesOf(metric, images);
    const points = Number(
      (100 * Math.max(...near.map(([one, other]) => noise(one, other, evaluated)))).toPrecision(3),
    );
    return [
      `${label(metric)}: differences below ${points} points may be chance (${evaluated.toLocaleString("en")} held-out images).`,
    ];
  });
}

/** The number that all of these are; else null. @param {(number | null)[]} counts */
export function common(counts) {
  return new Set(counts).size === 1 ? counts[0] : null;
}

/** Of how many of the held-out images a metric is a share. @param {string} metric @param {number} images */
function imagesOf(metric, images) {
  return metric === "instance_recall_at_1"
    ? Math.ceil(images / Math.ceil(images / MOST_VIEWS))
    : images;
}

/**
 * Twice the standard error of the difference of two shares of the same number of images, and at least one image.
 * @param {number} one @param {number} other @param {number} images
 */
function noise(one, other, images) {
  const share = (one + other) / 2;
  return Math.max(2 * Math.sqrt((2 * share * (1 - share)) / images), 1 / images);
}
