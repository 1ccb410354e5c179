import { useEffect, useState } from "preact/hooks";
import { metricsText } from "../api";
import { Choice, TextField } from "../components/Fields";
import { copyText } from "../format";
import { parse, Reading } from "../metrics";
import { curl, serveCommand, type ServeFlags } from "../request";
import { apiKey, settings } from "../settings";
import { model, text } from "../store";

const KV = ["", "f16", "bf16", "f32", "affine8", "affine4", "taper4", "taper3", "turbo4", "turbo3"].map(
  (name) => [name, name || "the default"] as const,
);
const DEVICES = [
  ["", "the processor"],
  ["cuda", "an NVIDIA GPU"],
  ["metal", "an Apple GPU"],
] as const;

/** Commands that do what the page does. */
export function Commands() {
  const [flags, setFlags] = useState<ServeFlags>({
    model: "",
    host: "",
    port: "",
    context: "",
    kv: "",
    device: "",
    threads: "",
    key: false,
  });
  const set = (part: Partial<ServeFlags>) => setFlags((old) => ({ ...old, ...part }));
  useEffect(() => {
    const card = model.value;
    const root = card?.parent ?? card?.root ?? "";
    const { hostname, port } = location;
    const local = ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
    set({
      model: root === "taper-demo" ? "" : root,
      host: local ? "" : "0.0.0.0",
      port: port === "8000" ? "" : port,
      key: apiKey.value !== "",
    });
    metricsText()
      .then((page) => {
        const name = new Reading(parse(page), 0).label("vllm:cache_config_info", "cache_dtype");
        if (KV.some(([known]) => known === name)) set({ kv: name === "f16" ? "" : name });
      })
      .catch(() => undefined);
  }, [model.value]);
  let request: string;
  try {
    const base = new URL("./", document.baseURI.split("#")[0]).href;
    request = curl(settings.value, model.value?.id ?? "", base, apiKey.value !== "");
  } catch (error) {
    request = `Tools or further fields: ${text(error)}`;
  }
  return (
    <section class="card">
      <h2>Commands</h2>
      <p class="quiet">A request with these settings:</p>
      <Command name="request" words={request} />
      <p class="quiet">A server:</p>
      <div class="fields">
        <TextField label="Model" placeholder="the demo model" value={flags.model} set={(value) => set({ model: value })} />
        <TextField label="Host" placeholder="127.0.0.1" value={flags.host} set={(value) => set({ host: value })} />
        <TextField label="Port" placeholder="8000" value={flags.port} set={(value) => set({ port: value })} />
        <TextField label="Context" placeholder="the model's" value={flags.context} set={(value) => set({ context: value })} />
        <Choice label="KV cache" value={flags.kv} options={KV} set={(value) => set({ kv: value })} />
        <Choice label="Runs on" value={flags.device} options={DEVICES} set={(value) => set({ device: value })} />
        <TextField label="Threads" placeholder="one a core" value={flags.threads} set={(value) => set({ threads: value })} />
      </div>
      <Command name="server" words={serveCommand(flags)} />
    </section>
  );
}

function Command({ name, words }: { name: string; words: string }) {
  return (
    <div class="code">
      <div class="code-head">
        <span>shell</span>
        <button type="button" aria-label={`Copy the ${name} command`} onClick={() => void copyText(words)}>
          Copy
        </button>
      </div>
      <pre tabIndex={0} data-command={name}>
        {words}
      </pre>
    </div>
  );
}
