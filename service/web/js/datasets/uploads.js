import { get, request } from "../core/api.js";
import { store } from "../core/store.js";

/** Bytes of a request, and the most that is sent twice. Object stores need at least 5 MiB. */
const CHUNK = 8 << 20;
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10_000;
// Errors that end by themselves: another request of the upload is running, or the chunk was damaged on its way.
const REPEATED = ["upload-offset", "upload-busy", "digest-mismatch"];
const TRANSIENT = [0, 408, 429, 502, 503, 504];

/**
 * @typedef {import("./content.js").Content} Content
 * @typedef {{content: Content, received: number, canceled: AbortController, error: Error | null, retrying: Error | null}} Upload
 *   bytes that the service has, the error that stopped it, and the one after which it is retried
 */
/** The uploads of this tab by data set. */
export const uploads = store(/** @type {Map<string, Upload>} */ (new Map()));

addEventListener("beforeunload", (event) => {
  for (const { content, received, error } of uploads.get().values())
    if (received < content.size && !error) event.preventDefault();
});

/**
 * Send the rest of a content, from byte `received` on. Retry transient errors until it is complete.
 * @param {string} id @param {Content} content @param {number} received
 */
export async function send(id, content, received) {
  stop(id);
  const canceled = new AbortController();
  let upload = /** @type {Upload} */ ({ content, received, canceled, error: null, retrying: null });
  const update = (/** @type {Partial<Upload>} */ change) => {
    upload = { ...upload, ...change };
    if (!canceled.signal.aborted) uploads.set(new Map(uploads.get()).set(id, upload));
  };
  update({});
  try {
    await sendRest(id, content, received, update, canceled.signal);
  } catch (error) {
    update({ error });
  }
}

/** Stop and forget an upload; what was sent stays in its data set. @param {string} id */
export function stop(id) {
  const rest = new Map(uploads.get());
  rest.get(id)?.canceled.abort();
  rest.delete(id);
  uploads.set(rest);
}

/**
 * @param {string} id @param {Content} content @param {number} received
 * @param {(change: Partial<Upload>) => void} update @param {AbortSignal} signal
 */
async function sendRest(id, content, received, update, signal) {
  let pause = FIRST_PAUSE;
  while (received < content.size) {
    try {
      received = await sendChunk(id, content, received, signal);
      update({ received, retrying: null });
      pause = FIRST_PAUSE;
    } catch (error) {
      const { status, type } = error;
      if (!TRANSIENT.includes(status) && !REPEATED.includes(type)) throw error;
      update({ retrying: error });
      await new Promise((resolve) => setTimeout(resolve, pause));
      signal.throwIfAborted();
      pause = Math.min(2 * pause, LONGEST_PAUSE);
      // The chunk may be stored although its answer was lost.
      const dataset = await get(`/v1/datasets/${id}`, {}, signal).catch(() => null);
      signal.throwIfAborted();
      if (!dataset?.upload) continue;
      received = dataset.upload.received;
      update({ received, retrying: error.status ? error : null });
    }
  }
}

/** @param {string} id @param {Content} content @param {number} start @param {AbortSignal} signal */
async function sendChunk(id, content, start, signal) {
  const stop = Math.min(start + CHUNK, content.size);
  let chunk;
  try {
    chunk = await content.read(start, stop);
  } catch (error) {
    throw new Error(
      `A file has changed or is gone (${error.message}). Remove the data set, and upload again.`,
    );
  }
  /** @type {Record<string, string>} */
  const headers = { "Content-Range": `bytes ${start}-${stop - 1}/${content.size}` };
  // Browsers have it only with TLS or on localhost.
  if (crypto.subtle) {
    const sha = new Uint8Array(await crypto.subtle.digest("SHA-256", chunk));
    headers["Content-Digest"] = `sha-256=:${btoa(String.fromCharCode(...sha))}:`;
  }
  const answer = await request(`/v1/datasets/${id}/content`, {
    method: "PUT",
    file: new Blob([chunk]),
    headers,
    signal,
  });
  return answer.upload?.received ?? stop;
}
