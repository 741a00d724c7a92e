import { html, useEffect, useState } from "../vendor.js";

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
