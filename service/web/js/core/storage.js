/** A value that this browser keeps; null if there is none, or storage is blocked. @param {string} key */
export function read(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // Private windows may refuse; the page works without.
  }
}

/** Keep a value in this browser; null removes it. @param {string} key @param {string | null} value */
export function write(key, value) {
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, value);
  } catch {
    // As above.
  }
}
