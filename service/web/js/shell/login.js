import { logIn } from "../core/session.js";
import { Button } from "../ui/controls.js";
import { Failure, useRefusal } from "../ui/state.js";
import { html, useState } from "../vendor.js";

/** The form that opens a session with a token. */
export function Login() {
  const [token, setToken] = useState("");
  const { refusal, attempt } = useRefusal();
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    return attempt(() => logIn({ token: token.trim() }));
  };
  return html`<main class="login">
    <form onSubmit=${send}>
      <h1>DASL</h1>
      <p class="muted">Self-supervised pretraining as a service</p>
      <label for="token">Token</label>
      <input
        id="token"
        type="password"
        autocomplete="current-password"
        spellcheck=${false}
        value=${token}
        onInput=${(event) => setToken(event.currentTarget.value)}
        required
      />
      ${refusal && html`<${Failure} error=${refusal} />`}
      <${Button} type="submit" kind="primary" label="Log in" />
      <p class="hint">
        <code>dasl open</code> prints a link that logs in, and <code>dasl tokens create</code> makes a token. This
        browser does not keep the token: it gets a session, which ends when you log out.
      </p>
    </form>
  </main>`;
}
