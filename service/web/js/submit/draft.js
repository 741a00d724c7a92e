import { request } from "../core/api.js";
import { useRefusal } from "../ui/state.js";
import { html, useEffect, useState } from "../vendor.js";

/**
 * A spec that is edited, with what the server says about it half a second after its last change.
 * @template {"/v1/jobs/validate" | "/v1/experiments/validate"} Path
 * @param {() => Api.Body<"POST", Path>} initial the spec of a job, or an experiment
 * @param {Path} path what validates it
 * @returns the newest `answer` with the resolved spec and its estimate; `error` says why the spec or its submission was
 *   refused, `unreadable` why the text is no spec
 */
export function useDraft(initial, path) {
  const [spec, setSpec] = useState(initial);
  const [unreadable, setUnreadable] = useState("");
  const [{ answer, invalid }, setState] = useState(
    /** @type {{answer: Api.Answer<"POST", Path> | null, invalid: Refusal | null}} */ ({
      answer: null,
      invalid: null,
    }),
  );
  const { refusal, attempt, forget } = useRefusal();
  const text = JSON.stringify(spec);
  useEffect(() => {
    const canceled = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const answer = await request(path, { method: "POST", body: spec, signal: canceled.signal });
        if (!canceled.signal.aborted) setState({ answer, invalid: null });
      } catch (error) {
        if (!canceled.signal.aborted) setState(({ answer }) => ({ answer, invalid: error }));
      }
    }, 500);
    return () => {
      clearTimeout(timer);
      canceled.abort();
    };
  }, [text]);
  const change = (/** @type {typeof spec} */ next) => {
    forget();
    setSpec(next);
  };
  const error = refusal ?? invalid;
  const canSubmit = invalid === null && unreadable === "";
  return { spec, change, unreadable, setUnreadable, answer, error, canSubmit, attempt };
}

/**
 * The spec of a job or of an experiment as YAML, or JSON, which is YAML too; `problem` says why the text is none.
 * @param {{spec: object, problem: string, onProblem: (problem: string) => void, onChange: (spec: any) => void}} props
 */
export function SpecText({ spec, problem, onProblem, onChange }) {
  const [yaml, setYaml] = useState(
    /** @type {typeof import("../../vendor/js-yaml.js") | null} */ (null),
  );
  const [text, setText] = useState("");
  useEffect(() => {
    // Only here is the parser needed.
    void import("../../vendor/js-yaml.js").then((library) => {
      setText(library.dump(spec));
      setYaml(() => library);
    });
  }, []);
  if (!yaml) return null;
  const typed = (/** @type {ChangeOf<HTMLTextAreaElement>} */ event) => {
    setText(event.currentTarget.value);
    try {
      const parsed = yaml.load(event.currentTarget.value);
      if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed))
        throw new Error("a spec is a mapping of settings");
      onProblem("");
      onChange(parsed);
    } catch (error) {
      onProblem(error.message);
    }
  };
  return html`<textarea class="spec-text" aria-label="Settings as YAML" spellcheck=${false} rows="30" value=${text} onInput=${typed}></textarea>
    ${problem && html`<p class="field-problem excerpt" role="alert">${problem}</p>`}`;
}
