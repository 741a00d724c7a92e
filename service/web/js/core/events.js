import { useEffect, useRef } from "../vendor.js";
import { get, queryString } from "./api.js";
import { store } from "./store.js";

/** Whether the page can be seen: its tab is in front. */
export const visible = store(!document.hidden);
document.addEventListener("visibilitychange", () => visible.set(!document.hidden));

/** Whether the stream of events is open. */
export const live = store(false);

/** @typedef {{listen: (event: Api.EventEntry) => unknown, opened?: () => void}} Listener */
/** @type {Set<{current: Listener}>} */
const listeners = new Set();
/** The id of the newest event, after which a new stream begins. */
let newestId = "";
/** @type {EventSource | null} */
let source = null;

/** Open the tenant's one stream of events. The browser opens it again when it breaks. */
export function openEvents() {
  wanted = true;
  // A browser keeps six connections to an origin for all of its tabs: those in the background must leave them.
  if (source || !visible.get()) return;
  source = new EventSource(`v1/events${queryString({ last_event_id: newestId })}`);
  source.onopen = () => {
    live.set(true);
    for (const { current } of [...listeners]) current.opened?.();
  };
  source.onerror = () => {
    live.set(false);
    // A stream does not say why it broke: if the service is away, or the session has ended, this answer does.
    void get("/v1/session").catch(() => undefined);
    if (source?.readyState !== EventSource.CLOSED) return;
    // Refused, as while the service starts: the browser does not try again by itself.
    source = null;
    setTimeout(() => wanted && openEvents(), 5000);
  };
  source.onmessage = deliver;
}

let wanted = false;

/** Close the stream. */
export function closeEvents() {
  wanted = false;
  newestId = "";
  leave();
}

function leave() {
  source?.close();
  source = null;
  live.set(false);
}

visible.follow((isVisible) => {
  if (!isVisible) leave();
  else if (wanted) openEvents();
});

/** @param {MessageEvent<string>} message */
function deliver(message) {
  let event;
  try {
    event = JSON.parse(message.data);
  } catch {
    console.warn("An event is not JSON", message.data);
    return;
  }
  newestId = message.lastEventId || newestId;
  for (const { current } of [...listeners]) current.listen(event);
}

/**
 * Call a function for each event, and another one whenever the stream opens: what happened between a request and then
 * is in neither.
 * @param {(event: Api.EventEntry) => unknown} listen
 * @param {() => void} [opened]
 */
export function useEvents(listen, opened) {
  const newest = useRef({ listen, opened });
  newest.current = { listen, opened };
  useEffect(() => {
    listeners.add(newest);
    return () => void listeners.delete(newest);
  }, []);
}
