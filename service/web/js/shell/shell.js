import { get, online } from "../core/api.js";
import { closeEvents, live, openEvents } from "../core/events.js";
import { helpShown, setViews } from "../core/keys.js";
import { link, useRoute } from "../core/router.js";
import { findSession, logIn, logOut, may, session } from "../core/session.js";
import { useStore } from "../core/store.js";
import { theme, toggleTheme } from "../core/theme.js";
import { attempt, complain, dismiss, toasts } from "../core/toasts.js";
import { Button, Icon, Menu } from "../ui/controls.js";
import { confirm, Confirmation } from "../ui/dialog.js";
import { Failure, Loading } from "../ui/state.js";
import { Help } from "./help.js";
import { Login } from "./login.js";
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
      await logInWith(decodeURIComponent(code));
      return;
    } catch (error) {
      complain(error);
    }
  }
  await find(failed);
}

/** Use a login code; ask before it replaces the session of another token. @param {string} code */
async function logInWith(code) {
  try {
    await logIn({ code });
  } catch (error) {
    if (error.type !== "other-session") throw error;
    await findSession();
    if (await confirm("Log in as somebody else?", `${error.message}.`, "Log in", "primary")) {
      await logIn({ code, replace: true });
      location.reload(); // What is shown is the other token's.
    }
  }
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

/** Name, navigation, state of the connection, theme and session. */
function TopBar() {
  const { path } = useRoute();
  const isLive = useStore(live);
  const shown = useStore(theme);
  const opened = useStore(session);
  return html`<header class="top-bar">
    <a class="skip" href="#view" onClick=${skip}>Skip to content</a>
    <a class="brand" href=${link(["jobs"])} aria-label="DASL: jobs"><${Mark} />DASL</a>
    <nav aria-label="Main">
      ${VIEWS.filter((view) => view.nav).map(
        (view) =>
          html`<a href=${link([view.path])} aria-current=${view.path === path[0] ? "page" : undefined}>${view.title}</a>`,
      )}
    </nav>
    <span class="grow"></span>
    <span class=${`live ${isLive ? "on" : ""}`} role="status" title=${isLive ? "Events arrive as they happen" : "No live events; the page asks every few seconds"}>
      <span class="dot"></span><span class="wide-only">${isLive ? "live" : "not live"}</span>
    </span>
    ${
      may("submit") &&
      html`<a class="button primary" href=${link(["submit"])}><${Icon} name="plus" /><span>New job</span></a>`
    }
    <${Button}
      icon=${shown === "dark" ? "sun" : "moon"}
      label=${shown === "dark" ? "Light theme" : "Dark theme"}
      quiet
      onClick=${toggleTheme}
    />
    <span class="wide-only muted" title="What you do belongs to this tenant">${opened?.tenant} · ${opened?.name}</span>
    <${Menu} label="Session" icon="user">
      ${(close) => html`<div class="menu-text">
          <strong>${opened?.name ?? "Session"}</strong>
          <span class="muted">${[opened?.tenant, opened?.scopes.at(-1)].filter(Boolean).join(" · ")}</span>
        </div>
        <button
          type="button"
          class="menu-item"
          onClick=${() => {
            close();
            helpShown.set(true);
          }}
        >Keyboard shortcuts</button>
        <button type="button" class="menu-item" onClick=${() => attempt(logOut)}>Log out</button>`}
    <//>
  </header>`;
}

function Mark() {
  return html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="7" />
    <g><circle cx="16" cy="16" r="8.5" /><path d="M16 16l6-6M16 16l-8.2 2M16 16l2.6 8" /></g>
  </svg>`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  const view = document.getElementById("view");
  view?.setAttribute("tabindex", "-1");
  view?.focus();
}
