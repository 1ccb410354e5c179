import { useState } from "preact/hooks";
import { keyWanted } from "../api";
import { apiKey, setKey } from "../settings";
import { refreshModels } from "../store";
import { Dialog } from "./Dialog";

/** Asks for the key of a server that wants one. */
export function KeyDialog() {
  const [key, set] = useState("");
  const [remember, setRemember] = useState(true);
  const close = () => (keyWanted.value = false);
  return (
    <Dialog label="API key" close={close}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          setKey(key.trim(), remember);
          close();
          void refreshModels();
        }}
      >
        <h2>API key</h2>
        <p class="quiet">
          {apiKey.value ? "The server does not take the key that this browser has." : "This server asks for a key."}
        </p>
        <label>
          Key
          <input
            type="password"
            autocomplete="current-password"
            autoFocus
            required
            value={key}
            onInput={(event) => set(event.currentTarget.value)}
          />
        </label>
        <label class="check">
          <input
            type="checkbox"
            checked={remember}
            onChange={(event) => setRemember(event.currentTarget.checked)}
          />
          Remember it in this browser
        </label>
        <div class="row end">
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Use key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
