import { render } from "preact";
import { App, onKeyDown } from "./app";
import { watchSettings } from "./settings";
import { start } from "./store";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/chat.css";
import "./styles/prose.css";
import "./styles/pages.css";

watchSettings();
window.addEventListener("keydown", onKeyDown);
void start().then(() => {
  const root = document.getElementById("app");
  if (root) render(<App />, root);
});

interface Policies {
  createPolicy(name: string, rules: { createScriptURL(url: string): string }): { createScriptURL(url: string): string };
}

/** Pages over plain HTTP from another machine have no service workers. */
if (import.meta.env.PROD && "serviceWorker" in navigator) {
  const policies = (window as { trustedTypes?: Policies }).trustedTypes;
  const rules = { createScriptURL: (url: string) => url };
  const url = (policies?.createPolicy("taper", rules) ?? rules).createScriptURL("sw.js");
  navigator.serviceWorker.register(url, { scope: "./" }).catch(() => undefined);
}
