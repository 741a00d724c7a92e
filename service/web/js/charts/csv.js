/** Let the browser save a table as CSV. @param {string} name @param {string[]} header @param {unknown[][]} rows */
export function saveCsv(name, header, rows) {
  const lines = [header, ...rows].map((row) => row.map(quoted).join(","));
  const address = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = `${name}.csv`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {unknown} value */
function quoted(value) {
  if (value === null || value === undefined) return "";
  const text = String(value);
  // A text that begins so is a formula to a spreadsheet; numbers are not.
  const safe = typeof value === "string" && /^[=+\-@]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
