import { useEffect, useState } from "../vendor.js";

/**
 * A value that components follow.
 * @template T
 * @param {T} value
 */
export function store(value) {
  /** @type {Set<(value: T) => void>} */
  const followers = new Set();
  return {
    get: () => value,
    /** @param {T} next */
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const follow of [...followers]) follow(value);
    },
    /** @param {(value: T) => void} follow */
    follow(follow) {
      followers.add(follow);
      return () => void followers.delete(follow);
    },
  };
}

/**
 * The value of a store; the component is rendered again when it changes.
 * @template T
 * @param {ReturnType<typeof store<T>>} source
 */
export function useStore(source) {
  const [value, setValue] = useState(source.get());
  useEffect(() => {
    setValue(() => source.get());
    return source.follow((next) => setValue(() => next));
  }, [source]);
  return value;
}

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
