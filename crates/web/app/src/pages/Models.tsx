import { useEffect, useState } from "preact/hooks";
import { deleteModel, metricsText, unloadModel, version } from "../api";
import { Dialog } from "../components/Dialog";
import { FactList, Facts } from "../components/Facts";
import { TransferOf } from "../components/Transfer";
import { bytes, whole } from "../format";
import { parse, Reading } from "../metrics";
import { change } from "../settings";
import { model, models, refreshModels, serverDown } from "../store";
import { change as act, download, load, running, transfers } from "../transfers";
import type { ModelCard } from "../types";
import { Sheet } from "./Header";

/** Milliseconds between two looks at what is loaded. */
const LOOK = 2000;

export function Models() {
  const [reading, setReading] = useState<Reading | null>(null);
  const [release, setRelease] = useState("");
  useEffect(() => {
    void refreshModels();
    metricsText()
      .then((text) => setReading(new Reading(parse(text), 0)))
      .catch(() => undefined);
    version()
      .then(setRelease)
      .catch(() => undefined);
    // Other clients load models too.
    const looks = setInterval(() => {
      if (!document.hidden && models.value.some((card) => card.status)) void refreshModels();
    }, LOOK);
    return () => clearInterval(looks);
  }, []);
  const several = models.value.some((card) => card.status);
  return (
    <Sheet title="Models">
      {serverDown.value && (
        <p class="error" role="alert">
          {serverDown.value}
        </p>
      )}
      <ul class="cards">
        {models.value.map((card) => (
          <Card key={card.id} card={card} reading={reading} />
        ))}
      </ul>
      {models.value.some((card) => card.can_update) && <Download />}
      {several && models.value.length > 0 && <Memory />}
      {reading && !several && <Cache reading={reading} />}
      {release && <p class="quiet">Taper {release}. The API is described under <a href="docs">/docs</a>.</p>}
    </Sheet>
  );
}

function Card({ card, reading }: { card: ModelCard; reading: Reading | null }) {
  const chosen = model.value?.id === card.id;
  const facts: [string, string][] = [];
  if (card.max_model_len) facts.push(["Context", `${whole(card.max_model_len)} tokens`]);
  if (card.parent) {
    facts.push(["Adapter of", card.parent]);
    const own = reading?.all("taper:lora_adapter_bytes").find((sample) => sample.labels["lora_name"] === card.id);
    if (own) facts.push(["Size", bytes(own.value)], ["Rank", own.labels["rank"] ?? ""]);
  } else if (reading && !card.status) {
    facts.push(["Weights", bytes(reading.get("taper:weight_bytes"))]);
  }
  if (card.file_bytes) facts.push(["On disk", bytes(card.file_bytes)]);
  if (card.memory_bytes) facts.push(["In memory", bytes(card.memory_bytes)]);
  if (card.aliases?.length) facts.push(["Also named", card.aliases.join(", ")]);
  if (card.root && card.root !== card.id) facts.push(["From", card.root]);
  return (
    <li class="card">
      <h2>
        {card.id} <span class="badge">{card.status?.value ?? "loaded"}</span>
        {card.pinned && <span class="badge">pinned</span>}
      </h2>
      <FactList facts={facts} />
      <TransferOf name={card.id} />
      <div class="row">
        {models.value.length > 1 && (
          <button type="button" disabled={chosen} onClick={() => change({ model: card.id })}>
            {chosen ? "Used in chats" : "Use in chats"}
          </button>
        )}
        {card.status && <Control card={card} />}
      </div>
    </li>
  );
}

/** What can be done with one of several models. */
function Control({ card }: { card: ModelCard }) {
  const [asks, setAsks] = useState(false);
  const state = card.status?.value;
  const { id } = card;
  return (
    <>
      {state === "loaded" && (
        <button type="button" aria-label={`Unload ${id}`} onClick={() => void act(id, unloadModel)}>
          Unload
        </button>
      )}
      {state === "unloaded" && (
        <button type="button" aria-label={`Load ${id}`} disabled={running(id)} onClick={() => void load(id)}>
          Load
        </button>
      )}
      {card.can_update && !card.default && (
        <button
          type="button"
          aria-label={`Delete ${id}`}
          disabled={state !== "unloaded"}
          title={state === "unloaded" ? "" : "Unload it first"}
          onClick={() => setAsks(true)}
        >
          Delete
        </button>
      )}
      {asks && (
        <Dialog label={`Delete ${id}`} close={() => setAsks(false)}>
          <p>Delete the files of {id} from the server?</p>
          <div class="row">
            <button type="button" onClick={() => setAsks(false)}>
              Keep
            </button>
            <button
              type="button"
              onClick={() => {
                setAsks(false);
                void act(id, deleteModel);
              }}
            >
              Delete its files
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

/** A model of the hub, by its name. */
function Download() {
  const [name, setName] = useState("");
  const known = new Set(models.value.map((card) => card.id));
  const others = [...transfers.value.keys()].filter((other) => !known.has(other));
  const wanted = name.trim();
  return (
    <section class="card" aria-label="Download">
      <h2>Download</h2>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          if (wanted) void download(wanted);
          setName("");
        }}
      >
        <input
          aria-label="Name on the Hugging Face hub"
          placeholder="org/name, such as mlx-community/Qwen3-0.6B-4bit"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <button type="submit" disabled={!wanted}>
          Download
        </button>
      </form>
      {others.map((other) => (
        <div key={other} class="other">
          <strong>{other}</strong>
          <TransferOf name={other} />
        </div>
      ))}
    </section>
  );
}

/** What all loaded models take. */
function Memory() {
  const loaded = models.value.filter((card) => card.status?.value === "loaded");
  const taken = models.value.reduce((sum, card) => sum + (card.memory_bytes ?? 0), 0);
  const facts: [string, string][] = [
    ["Loaded", `${loaded.length} of ${models.value.length}`],
    ["Memory", bytes(taken)],
  ];
  return <Facts title="All models" facts={facts} />;
}

function Cache({ reading }: { reading: Reading }) {
  const capacity = reading.get("taper:kv_cache_capacity_bytes");
  if (capacity === 0) return null;
  const info = (label: string) => reading.label("vllm:cache_config_info", label);
  const tokens = Number(info("block_size")) * Number(info("num_gpu_blocks"));
  const drafts = reading.label("taper:spec_decode_info", "method");
  const facts: [string, string][] = [
    ["Format", info("cache_dtype")],
    ["Size", bytes(capacity)],
    ["Room for", `${whole(tokens)} tokens`],
    ["Prefix caching", info("enable_prefix_caching") === "True" ? "on" : "off"],
    ["Speculation", drafts || "off"],
  ];
  return <Facts title="KV cache" facts={facts} />;
}
