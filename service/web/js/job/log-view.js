import { get } from "../core/api.js";
import { visible } from "../core/events.js";
import { setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { isFinal } from "../jobs/actions.js";
import { Button, Icon, Select } from "../ui/controls.js";
import { Empty, Failure, Loading } from "../ui/state.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor.js";

const TAIL = 2000;
/** More lines than these are not kept: the whole log can be downloaded. */
const MOST = 5000;

/** The log of the newest or a chosen attempt: its end, live, with search. @param {JobProps} props */
export function LogView({ job, query }) {
  const attempt = Number(query.get("attempt")) || job.attempt;
  const [text, setText] = useState("");
  const [follow, setFollow] = useState(true);
  const { lines, error, loading } = useLog(job, attempt);
  const shown = useMemo(
    () => (text ? lines.filter((line) => line.toLowerCase().includes(text.toLowerCase())) : lines),
    [lines, text],
  );
  const box = useRef(/** @type {HTMLPreElement | null} */ (null));
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown, follow]);
  const scrolled = (/** @type {ChangeOf<HTMLPreElement>} */ { currentTarget: element }) => {
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
    if (isAtEnd !== follow) setFollow(isAtEnd);
  };
  if (job.attempt === 0)
    return html`<${Empty} title="No log yet"><p>It begins with the first attempt.</p><//>`;
  return html`<div class="toolbar">
      <span class="search"><${Icon} name="search" /><input type="search" aria-label="Search the log" placeholder="Search the log" value=${text} onInput=${(event) => setText(event.currentTarget.value)} /></span>
      ${
        job.attempt > 1 &&
        html`<${Select} label="Attempt" options=${Array.from({ length: job.attempt }, (_, index) => [`${index + 1}`, `Attempt ${index + 1}`])} value=${`${attempt}`} onChange=${(number) => setQuery({ attempt: number })} />`
      }
      <span class="muted small">${text ? `${shown.length} of ${lines.length} lines` : `${lines.length} lines`}</span>
      <span class="grow"></span>
      <${Button} label="Follow" pressed=${follow} onClick=${() => setFollow(!follow)} />
      <a class="button" href=${`/v1/jobs/${job.id}/logs?attempt=${attempt}`} download=${`${job.id}-${attempt}.log`}><${Icon} name="download" /><span>Whole log</span></a>
    </div>
    ${error && html`<${Failure} error=${error} />`}
    ${loading ? html`<${Loading} what="the log" />` : html`<pre class="log" ref=${box} tabindex="0" aria-label="Log" onScroll=${scrolled}>${shown.map((line) => html`<${Line} text=${line} found=${text} />`)}</pre>`}`;
}

/** @param {{text: string, found: string}} props */
function Line({ text, found }) {
  const tone = /\b(ERROR|CRITICAL|Traceback)\b/.test(text)
    ? "bad"
    : /\bWARN(ING)?\b/.test(text)
      ? "warn"
      : "";
  const at = found ? text.toLowerCase().indexOf(found.toLowerCase()) : -1;
  return html`<span class=${tone}>${at < 0 ? text : html`${text.slice(0, at)}<mark>${text.slice(at, at + found.length)}</mark>${text.slice(at + found.length)}`}${"\n"}</span>`;
}

/** @typedef {{lines: string[], error: Refusal | null, loading: boolean}} Log */
/** @param {Api.JobView} job @param {number} attempt */
function useLog(job, attempt) {
  const [state, setState] = useState(
    /** @type {Log} */ ({ lines: [], error: null, loading: true }),
  );
  const isLive = !isFinal(job) && attempt === job.attempt;
  // As the stream of events: a tab in the background leaves its connection to others.
  const isPaused = !useStore(visible) && isLive;
  useEffect(() => {
    if (!attempt || isPaused) return undefined;
    const canceled = new AbortController();
    setState({ lines: [], error: null, loading: true });
    if (isLive) {
      const source = new EventSource(`/v1/jobs/${job.id}/logs?tail=${TAIL}&attempt=${attempt}`);
      source.addEventListener("log", (message) => add(message.data.split("\n")));
      source.onopen = () => setState((before) => ({ ...before, loading: false }));
      return () => source.close();
    }
    get(`/v1/jobs/${job.id}/logs`, { tail: TAIL, attempt }, canceled.signal).then(
      (text) =>
        setState({ lines: text.replace(/\n$/, "").split("\n"), error: null, loading: false }),
      (error) => canceled.signal.aborted || setState({ lines: [], error, loading: false }),
    );
    return () => canceled.abort();
  }, [job.id, attempt, isLive, isPaused]);
  /** @param {string[]} lines */
  function add(lines) {
    setState((before) => ({
      lines: [...before.lines, ...lines].slice(-MOST),
      error: null,
      loading: false,
    }));
  }
  return state;
}
