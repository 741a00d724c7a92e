import { get, onRefused, post, remove, setCsrf } from "./api.js";
import { read, write } from "./storage.js";
import { store } from "./store.js";

// Whether this browser has had a session. Without one, asking for it would only be refused, which browsers report as an
// error. The session itself is a cookie that scripts cannot read.
const KEY = "dasl-session";

/** The session: undefined is not known yet, null is none. */
export const session = store(/** @type {object | null | undefined} */ (undefined));

/** Open a session with a token, or with a one-time code. @param {{token?: string, code?: string}} secret */
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

const RANKS = ["read", "submit", "admin", "operator"];

/** Whether the session's token has at least this scope. @param {"read"|"submit"|"admin"|"operator"} scope */
export function may(scope) {
  const scopes = session.get()?.scopes ?? [];
  const highest = Math.max(-1, ...scopes.map((each) => RANKS.indexOf(each)));
  return highest >= RANKS.indexOf(scope);
}
