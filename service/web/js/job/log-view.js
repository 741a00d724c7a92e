import { get, useResource } from "../core/api.js";
import { visible } from "../core/events.js";
import { setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { isFinal } from "../jobs/actions.js";
import { Button, Icon, Select } from "../ui/controls.js";
import { Empty, Loaded } from "../ui/state.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor.js";

const TAIL = 2000;
/** More lines than these are not kept: the whole log can be downloaded. */
const MOST = 5000;

/** The log of the newest or a chosen attempt: its end, live, with search. @param {JobProps} props */
export function LogView({ job, query }) {
  const attempt = Number(query.get("attempt")) || job.attempt;
  const [text, setText] = useState("");
  const [follow, setFollow] = useState(true);
  const log = useLog(job, attempt);
  const lines = log.data ?? [];
  const shown = useMemo(
    () => lines.filter((line) => line.toLowerCase().includes(text.toLowerCase())),
    [log.data, text],
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
      <a class="button" href=${`v1/jobs/${job.id}/logs?attempt=${attempt}`} download=${`${job.id}-${attempt}.log`}><${Icon} name="download" /><span>Whole log</span></a>
    </div>
    <${Loaded} resource=${log} what="the log">
      ${() => html`<pre class="log" ref=${box} tabindex="0" aria-label="Log" onScroll=${scrolled}>${shown.map((line) => html`<${Line} text=${line} found=${text} />`)}</pre>`}
    <//>`;
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

/** The end of a log, followed while its attempt runs. @param {Api.JobView} job @param {number} attempt */
function useLog(job, attempt) {
  const isLive = !isFinal(job) && attempt === job.attempt;
  // As the stream of events: a tab in the background leaves its connection to others.
  const isPaused = !useStore(visible) && isLive;
  const log = useResource(
    async (signal) => {
      // The stream has the lines of a live one.
      if (!attempt || isLive) await new Promise(() => {});
      const text = await get(`/v1/jobs/${job.id}/logs`, { tail: TAIL, attempt }, signal);
      return text.replace(/\n$/, "").split("\n");
    },
    [job.id, attempt, isLive],
  );
  useEffect(() => {
    if (!attempt || !isLive || isPaused) return undefined;
    const add = (/** @type {string[]} */ ...lines) =>
      log.update((before = []) => [...before, ...lines].slice(-MOST));
    log.update(() => undefined);
    const source = new EventSource(`v1/jobs/${job.id}/logs?tail=${TAIL}&attempt=${attempt}`);
    source.addEventListener("log", (message) => add(...message.data.split("\n")));
    source.onopen = () => add();
    return () => source.close();
  }, [job.id, attempt, isLive, isPaused]);
  return log;
}
