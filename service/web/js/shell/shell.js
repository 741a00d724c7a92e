import { closeEvents, openEvents } from "../core/events.js";
import { useRoute } from "../core/router.js";
import { findSession, logIn, session } from "../core/session.js";
import { useStore } from "../core/store.js";
import { complain } from "../core/toasts.js";
import { Confirmation } from "../ui/dialog.js";
import { Loading } from "../ui/state.js";
import { ToastList } from "../ui/toast-list.js";
import { html, useEffect } from "../vendor.js";
import { Banner } from "./banner.js";
import { Help } from "./help.js";
import { Login } from "./login.js";
import { TopBar } from "./top-bar.js";
import { VIEWS } from "./views.js";

/** The page: a log-in form, or the bar and the view that the address names. */
export function Shell() {
  const opened = useStore(session);
  useEffect(() => {
    void begin();
    // A link that is pasted into an open page changes only its hash.
    const arrived = () => void (codeOf(location.hash) && begin());
    addEventListener("hashchange", arrived);
    return () => removeEventListener("hashchange", arrived);
  }, []);
  useEffect(() => {
    if (opened) openEvents();
    else closeEvents();
  }, [opened]);
  return html`<${Banner} />
    ${opened === undefined && html`<${Loading} />`} ${opened === null && html`<${Login} />`}
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

/** Use the one-time code of the address, which `dasl open` prints, else the cookie. */
async function begin() {
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
  await find();
}

async function find() {
  try {
    await findSession();
  } catch {
    // The service is away, and the banner says so.
    setTimeout(find, 3000);
  }
}
