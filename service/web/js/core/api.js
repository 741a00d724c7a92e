import { store } from "./store.js";
import { useCallback, useEffect, useRef, useState } from "../vendor.js";

/** Whether the service answers: what the banner shows. */
export const online = store(true);

/** The CSRF token of the session, which every write sends. */
let csrf = "";
/** Called when the session has ended. */
let whenRefused = () => {};

/** @param {string} token */
export function setCsrf(token) {
  csrf = token;
}

/** @param {() => void} call */
export function onRefused(call) {
  whenRefused = call;
}

/** An error answer of the API (RFC 9457), or no answer at all: then `status` is 0. */
export class Problem extends Error {
  /** @param {Pick<Api.ProblemDocument, "type" | "status"> & Partial<Api.ProblemDocument>} document */
  constructor(document) {
    super(document.detail || document.title || document.type);
    this.document = document;
    this.status = document.status;
    this.type = document.type;
    this.errors = document.errors ?? [];
  }
}

/** Answers without a text, which are not the service's own. @type {Record<number, string>} */
const UNEXPLAINED = {
  413: "A proxy in front of the service accepts no body of this size (413). Let it accept 64 MB (nginx: client_max_body_size 64m).",
};
const OFFLINE = { type: "offline", status: 0, detail: "The service does not answer." };

/**
 * Send a request and return the answer: parsed JSON, or the text of anything else.
 * @template {string} Path
 * @template {string} [Method="GET"]
 * @param {Path} path
 * @param {{method?: Method, body?: Api.Body<Method, Path>, file?: Blob, query?: Api.Parameters<Method, Path>,
 *   headers?: Record<string, string>, signal?: AbortSignal, key?: string}} [options]
 *   `body` is sent as JSON, `file` as it is, `key` as Idempotency-Key
 * @returns {Promise<Api.Answer<Method, Path>>}
 */
export async function request(
  path,
  { method, body, file, query, headers: others, signal, key } = {},
) {
  const headers = { ...others };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (file) headers["Content-Type"] = "application/octet-stream";
  if (method && csrf) headers["X-CSRF-Token"] = csrf;
  if (key) headers["Idempotency-Key"] = key;
  let answer;
  let content;
  try {
    // Relative to the page: a proxy may serve it below a path.
    answer = await fetch(path.replace(/^\//, "") + queryString(query), {
      method,
      headers,
      signal,
      credentials: "same-origin",
      body: file ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
    content = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    online.set(false);
    throw new Problem(OFFLINE);
  }
  const kind = answer.headers.get("content-type") ?? "";
  // A proxy answers while the service behind it is away. Answers of the service itself are JSON.
  if (answer.status >= 502 && answer.status <= 504 && !kind.includes("json")) {
    online.set(false);
    throw new Problem(OFFLINE);
  }
  online.set(true);
  const parsed = kind.includes("json") && content ? JSON.parse(content) : content;
  if (answer.ok) return parsed;
  if (answer.status === 401) whenRefused();
  throw new Problem(
    typeof parsed === "object" && parsed
      ? parsed
      : {
          type: "error",
          status: answer.status,
          detail: UNEXPLAINED[answer.status] ?? `The service answered ${answer.status}.`,
        },
  );
}

/**
 * @template {string} Path
 * @param {Path} path @param {Api.Parameters<"GET", Path>} [query] @param {AbortSignal} [signal]
 */
export const get = (path, query, signal) => request(path, { query, signal });
/**
 * @template {string} Path
 * @param {Path} path @param {Api.Body<"POST", Path>} [body] @param {string} [key] an Idempotency-Key
 */
export const post = (path, body, key) => request(path, { method: "POST", body, key });
/** A new Idempotency-Key. */
export const newKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-");
/** @template {string} Path @param {Path} path @param {Api.Body<"PATCH", Path>} body */
export const patch = (path, body) => request(path, { method: "PATCH", body });
/** @template {string} Path @param {Path} path @param {Api.Parameters<"DELETE", Path>} [query] */
export const remove = (path, query) => request(path, { method: "DELETE", query });

/**
 * All items of a list that has several pages, at most `most`.
 * @template {string} Path
 * @param {Path} path @param {object} query @param {AbortSignal} [signal]
 * @returns {Promise<Api.Items<Path>>}
 */
export async function all(path, query, signal, most = 1000) {
  /** @type {any} */
  const items = [];
  let after;
  do {
    /** @type {any} */
    const page = await request(`${path}${queryString({ ...query, after, limit: 200 })}`, {
      signal,
    });
    items.push(...page.data);
    after = page.has_more ? page.next : undefined;
  } while (after !== undefined && items.length < most);
  return items;
}

/** A query string; lists repeat their name, and empty values are left out. @param {object} [query] */
export function queryString(query = {}) {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    [value].flat().map((each) => [name, each ?? ""]),
  );
  const text = new URLSearchParams(pairs.filter(([, each]) => each !== "")).toString();
  return text ? `?${text}` : "";
}

const SECONDS_AFTER_ERROR = 3;

/**
 * What a request answers, with its state. A request is not sent again before the last one is answered, so that a slow
 * service is not asked in vain.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {unknown[]} keys the request is sent again when one of them changes
 * @param {{every?: number | ((data: T | undefined) => number)}} [options] `every`: seconds from an answer to the next
 *   request; 0 is never
 * @returns {Resource<T> & {update: (change: (before: T | undefined) => T | undefined) => void}}
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
  const update = useCallback(
    (/** @type {(before: T | undefined) => T | undefined} */ change) =>
      setState(({ data, error }) => ({ data: change(data), error })),
    [],
  );
  return { ...state, reload, update };
}
