import { get, onRefused, post, remove, setCsrf } from "./api.js";
import { read, store, write } from "./store.js";

// Whether this browser has had a session. Without one, asking for it would only be refused, which browsers report as an
// error. The session itself is a cookie that scripts cannot read.
const KEY = "dasl-session";

/** The session: undefined is not known yet, null is none. */
export const session = store(/** @type {Api.SessionView | null | undefined} */ (undefined));

/** Open a session with a token, or with a one-time code. @param {Api.SessionRequest} secret */
export async function logIn(secret) {
  opened(await post("/v1/session", secret));
}

/** Find the session that the browser's cookie stands for. */
export async function findSession() {
  if (!read(KEY)) {
    session.set(null);
    return;
  }
  try {
    opened(await get("/v1/session"));
  } catch (error) {
    // Only this answer says that there is no session; others say that it cannot be known now.
    if (error.status !== 401) throw error;
    closed();
  }
}

/** End the session, here and on the server. */
export async function logOut() {
  await remove("/v1/session");
  closed();
}

/** @param {Api.SessionView} answer */
function opened(answer) {
  setCsrf(answer.csrf);
  write(KEY, "1");
  session.set(answer);
}

function closed() {
  write(KEY, null);
  session.set(null);
}

onRefused(() => {
  if (session.get()) closed();
});

/** Titles of metrics by name: those of evaluations in the order of tables, then those of training. */
export const metrics = () => session.get()?.metrics ?? {};

/** Whether the session has this scope. @param {Api.SessionView["scopes"][number]} scope */
export function may(scope) {
  return session.get()?.scopes.includes(scope) ?? false;
}
