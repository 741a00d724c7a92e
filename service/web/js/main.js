import { Shell } from "./shell/shell.js";
import { html, render } from "./vendor.js";

const root = document.getElementById("app");
if (root) render(html`<${Shell} />`, root);
