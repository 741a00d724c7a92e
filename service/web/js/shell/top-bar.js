import { live } from "../core/events.js";
import { helpShown } from "../core/keys.js";
import { link, useRoute } from "../core/router.js";
import { logOut, may, session } from "../core/session.js";
import { useStore } from "../core/store.js";
import { theme, toggleTheme } from "../core/theme.js";
import { attempt } from "../core/toasts.js";
import { Button, Icon, Menu } from "../ui/controls.js";
import { html } from "../vendor.js";
import { VIEWS } from "./views.js";

/** Name, navigation, state of the connection, theme and session. */
export function TopBar() {
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
