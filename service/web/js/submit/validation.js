import { request } from "../core/api.js";
import { useEffect, useState } from "../vendor.js";

/**
 * What the server says about a spec, half a second after its last change.
 * @param {object} spec of a job, or of an experiment
 * @param {string} [path] what validates it
 * @returns {{answer: object | null, error: Error | null}} the resolved spec with its estimate, or why it is refused
 */
export function useValidation(spec, path = "/v1/jobs/validate") {
  const [state, setState] = useState({ answer: null, error: null });
  const text = JSON.stringify(spec);
  useEffect(() => {
    const canceled = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const answer = await request(path, { method: "POST", body: spec, signal: canceled.signal });
        setState({ answer, error: null });
      } catch (error) {
        if (!canceled.signal.aborted) setState((before) => ({ answer: before.answer, error }));
      }
    }, 500);
    return () => {
      clearTimeout(timer);
      canceled.abort();
    };
  }, [text]);
  return state;
}
