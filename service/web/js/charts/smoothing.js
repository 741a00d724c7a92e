/**
 * The exponential moving average of the values that are there, corrected for its start at zero.
 * @param {(number | null)[]} values
 * @param {number} weight of the past, from 0 to 1
 */
export function smooth(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}
