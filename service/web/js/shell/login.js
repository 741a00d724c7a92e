import { logIn } from "../core/session.js";
import { Button } from "../ui/button.js";
import { Failure } from "../ui/state.js";
import { html, useState } from "../vendor.js";

/** The form that opens a session with a token. */
export function Login() {
  const [token, setToken] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setError(null);
    try {
      await logIn({ token: token.trim() });
    } catch (problem) {
      setError(problem);
    }
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
      ${error && html`<${Failure} error=${error} />`}
      <${Button} type="submit" kind="primary" label="Log in" />
      <p class="hint">
        <code>dasl open</code> prints a link that logs in, and <code>dasl tokens create</code> makes a token. This
        browser does not keep the token: it gets a session, which ends when you log out.
      </p>
    </form>
  </main>`;
}
