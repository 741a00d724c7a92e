import { Problem, get, request } from "../core/api.js";
import { store } from "../core/store.js";

/** Bytes of a request, and what an interruption may cost. Object stores want at least 5 MiB. */
const CHUNK = 8 << 20;
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10_000;
// Another request of the same upload ends, or a damaged chunk is sent once more.
const REPEATED = ["upload-offset", "upload-busy", "digest-mismatch"];
const TRANSIENT = [0, 408, 429, 502, 503, 504];

/**
 * The uploads of this tab by data set: bytes that the service has, why one has stopped, and why a chunk is sent again.
 * @type {ReturnType<typeof store<Map<string, {content: import("./content.js").Content, received: number, canceled: AbortController,
 *   error: Error | null, problem: Error | null}>>>}
 */
export const uploads = store(new Map());

addEventListener("beforeunload", (event) => {
  if ([...uploads.get().values()].some(({ content, received, error }) => received < content.size && !error)) event.preventDefault();
});

/** Send what the service does not have yet of a content, over any number of lost connections. */
export async function send(id, content, received) {
  stop(id);
  const canceled = new AbortController();
  const note = (change) => {
    if (!canceled.signal.aborted) uploads.set(new Map(uploads.get()).set(id, { ...uploads.get().get(id), ...change }));
  };
  note({ content, received, canceled, error: null, problem: null });
  try {
    await sendRest(id, content, received, note, canceled.signal);
  } catch (error) {
    note({ error });
  }
}

/** Forget an upload; its data set keeps what it has. @param {string} id */
export function stop(id) {
  const rest = new Map(uploads.get());
  rest.get(id)?.canceled.abort();
  rest.delete(id);
  uploads.set(rest);
}

async function sendRest(id, content, received, note, signal) {
  let pause = FIRST_PAUSE;
  while (received < content.size) {
    try {
      received = (await sendChunk(id, content, received, signal)).upload.received;
      note({ received, problem: null });
      pause = FIRST_PAUSE;
    } catch (error) {
      if (!(error instanceof Problem && (TRANSIENT.includes(error.status) || REPEATED.includes(error.type)))) throw error;
      note({ problem: error });
      await new Promise((resolve) => setTimeout(resolve, pause));
      signal.throwIfAborted();
      pause = Math.min(2 * pause, LONGEST_PAUSE);
      // The answer that was lost may have been that of a chunk which is stored.
      received = (await get(`/v1/datasets/${id}`, {}, signal).catch(() => null))?.upload.received ?? received;
      signal.throwIfAborted();
      note({ received });
    }
  }
}

async function sendChunk(id, content, start, signal) {
  const stop = Math.min(start + CHUNK, content.size);
  let chunk;
  try {
    chunk = await content.read(start, stop);
  } catch (error) {
    throw new Error(`A file has changed or is gone (${error.message}). Remove the data set, and upload again.`);
  }
  const headers = { "Content-Range": `bytes ${start}-${stop - 1}/${content.size}` };
  // Browsers have it on pages with TLS and of their own machine.
  if (crypto.subtle) {
    const sha = new Uint8Array(await crypto.subtle.digest("SHA-256", chunk));
    headers["Content-Digest"] = `sha-256=:${btoa(String.fromCharCode(...sha))}:`;
  }
  return request(`/v1/datasets/${id}/content`, { method: "PUT", file: new Blob([chunk]), headers, signal });
}
