import { useEffect, html } from "../vendor.js";
import { get, online } from "../core/api.js";
import { useStore } from "../core/store.js";

/** Says that the service does not answer, and asks until it does. */
export function Banner() {
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
