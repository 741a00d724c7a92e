import { request } from "../core/api.js";
import { useEffect, useState } from "../vendor.js";

/**
 * What the server says about a spec, half a second after its last change.
 * @template {"/v1/jobs/validate" | "/v1/experiments/validate"} Path
 * @param {Api.Body<"POST", Path>} spec of a job, or of an experiment
 * @param {Path} path what validates it
 * @returns the resolved spec with its estimate, or why it is refused
 */
export function useValidation(spec, path) {
  const [state, setState] = useState(
    /** @type {{answer: Api.Answer<"POST", Path> | null, error: Refusal | null}} */ ({
      answer: null,
      error: null,
    }),
  );
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
