import { useCallback, useEffect, useRef, useState } from "../vendor.js";
import { online } from "./api.js";

const SECONDS_AFTER_ERROR = 3;

/**
 * What a request answers, with its state. A request is not sent again before the last one is answered, so that a slow
 * service is not asked in vain.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {unknown[]} keys the request is sent again when one of them changes
 * @param {{every?: number | ((data: T | undefined) => number)}} [options] `every`: seconds from an answer to the next
 *   request; 0 is never
 * @returns {Resource<T> & {set: (data: T) => void}}
 */
export function useResource(load, keys, { every = 0 } = {}) {
  const [state, setState] = useState(/** @type {Pick<Resource<T>, "data" | "error">} */ ({}));
  const newest = useRef({ load, every });
  newest.current = { load, every };
  const send = useRef(() => {});
  const shown = useRef(keys);
  useEffect(() => {
    const canceled = new AbortController();
    /** @type {number | undefined} */
    let timer;
    let isBusy = false;
    let isWanted = false;
    /** @type {T | undefined} */
    let data;
    // What belongs to other keys must not be shown for these.
    if (shown.current.some((key, index) => key !== keys[index])) {
      setState({ data: undefined, error: undefined });
    }
    shown.current = keys;
    send.current = async () => {
      isWanted = true;
      if (isBusy) return;
      isBusy = true;
      clearTimeout(timer);
      let isAnswered = false;
      while (isWanted && !canceled.signal.aborted) {
        isWanted = false;
        try {
          data = await newest.current.load(canceled.signal);
          isAnswered = true;
          if (!canceled.signal.aborted) setState({ data, error: undefined });
        } catch (error) {
          isAnswered = false;
          if (!canceled.signal.aborted) setState((before) => ({ data: before.data, error }));
        }
      }
      isBusy = false;
      if (canceled.signal.aborted) return;
      const wait = newest.current.every;
      // What is asked for again and again is asked for after an error, too, by what was answered last.
      const again =
        typeof wait === "function" ? wait(data) || (isAnswered ? 0 : SECONDS_AFTER_ERROR) : wait;
      const seconds = again || (online.get() ? 0 : SECONDS_AFTER_ERROR);
      if (seconds) timer = setTimeout(send.current, seconds * 1000);
    };
    void send.current();
    return () => {
      canceled.abort();
      clearTimeout(timer);
    };
  }, keys);
  const reload = useCallback(() => void send.current(), []);
  const set = useCallback((/** @type {T} */ data) => setState({ data, error: undefined }), []);
  return { ...state, reload, set };
}
