import { get, online } from "../core/api.js";
import { closeEvents, openEvents } from "../core/events.js";
import { setViews } from "../core/keys.js";
import { useRoute } from "../core/router.js";
import { findSession, logIn, session } from "../core/session.js";
import { useStore } from "../core/store.js";
import { complain, dismiss, toasts } from "../core/toasts.js";
import { Button } from "../ui/controls.js";
import { Confirmation } from "../ui/dialog.js";
import { Failure, Loading } from "../ui/state.js";
import { Help } from "./help.js";
import { Login } from "./login.js";
import { TopBar } from "./top-bar.js";
import { VIEWS } from "./views.js";
import { html, useEffect, useState } from "../vendor.js";

setViews(VIEWS.map((view) => view.path));

/** The page: a log-in form, or the bar and the view that the address names. */
export function Shell() {
  const opened = useStore(session);
  const [problem, setProblem] = useState(/** @type {Error | undefined} */ (undefined));
  useEffect(() => {
    void begin(setProblem);
    // A link that is pasted into an open page changes only its hash.
    const arrived = () => void (codeOf(location.hash) && begin(setProblem));
    addEventListener("hashchange", arrived);
    return () => removeEventListener("hashchange", arrived);
  }, []);
  useEffect(() => {
    if (opened) openEvents();
    else closeEvents();
  }, [opened]);
  return html`<${Banner} />
    ${opened === undefined && (problem ? html`<${Failure} error=${problem} />` : html`<${Loading} />`)}
    ${opened === null && html`<${Login} />`}
    ${opened && html`<${TopBar} /><${View} />`}
    <${ToastList} /><${Confirmation} /><${Help} />`;
}

function View() {
  const { path, query } = useRoute();
  const view = VIEWS.find((each) => each.path === path[0]) ?? VIEWS[0];
  useEffect(() => {
    document.title = `${view.title} · DASL`;
  }, [view]);
  return html`<main id="view"><${view.component} rest=${path.slice(1)} query=${query} /></main>`;
}

/** @param {string} hash */
const codeOf = (hash) => /^#login=(.+)$/.exec(hash)?.[1];

/**
 * Use the one-time code of the address, which `dasl open` prints, else the cookie.
 * @param {(problem: Error | undefined) => void} failed
 */
async function begin(failed) {
  const code = codeOf(location.hash);
  if (code) {
    // A code works once: it must not stay in the address, nor in the history.
    history.replaceState(null, "", "#/jobs");
    dispatchEvent(new HashChangeEvent("hashchange"));
    try {
      await logIn({ code: decodeURIComponent(code) });
      return;
    } catch (error) {
      complain(error);
    }
  }
  await find(failed);
}

/** @param {(problem: Error | undefined) => void} failed */
async function find(failed) {
  try {
    await findSession();
  } catch (error) {
    // If the service is away, the banner says so.
    failed(error.status === 0 ? undefined : error);
    setTimeout(find, 3000, failed);
  }
}

/** Says that the service does not answer, and asks until it does. */
function Banner() {
  const isOnline = useStore(online);
  useEffect(() => {
    if (isOnline) return undefined;
    const timer = setInterval(() => void get("/livez").catch(() => undefined), 3000);
    return () => clearInterval(timer);
  }, [isOnline]);
  if (isOnline) return null;
  return html`<div class="banner" role="alert">
    The service does not answer. What you see may be old; the page asks again every three seconds.
  </div>`;
}

/** Messages at the edge of the page. */
function ToastList() {
  const shown = useStore(toasts);
  return html`<div class="toasts" aria-live="polite">
    ${shown.map(
      (
        toast,
      ) => html`<div key=${toast.id} class=${`toast ${toast.bad ? "bad" : ""}`} role=${toast.bad ? "alert" : "status"}>
        <div>
          ${toast.text}
          ${toast.details.length > 0 && html`<ul>${toast.details.map((line) => html`<li>${line}</li>`)}</ul>`}
        </div>
        <${Button} icon="close" label="Dismiss" quiet onClick=${() => dismiss(toast.id)} />
      </div>`,
    )}
  </div>`;
}
