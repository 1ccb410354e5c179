import { useEffect, useState } from "preact/hooks";
import { metricsText, version } from "../api";
import { FactList, Facts } from "../components/Facts";
import { bytes, whole } from "../format";
import { parse, Reading } from "../metrics";
import { change } from "../settings";
import { model, models, refreshModels, serverDown } from "../store";
import type { ModelCard } from "../types";
import { Sheet } from "./Header";

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
  }, []);
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
      {reading && <Cache reading={reading} />}
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
  } else if (reading) {
    facts.push(["Weights", bytes(reading.get("taper:weight_bytes"))]);
  }
  if (card.root && card.root !== card.id) facts.push(["From", card.root]);
  return (
    <li class="card">
      <h2>
        {card.id} <span class="badge">loaded</span>
      </h2>
      <FactList facts={facts} />
      {models.value.length > 1 && (
        <button type="button" disabled={chosen} onClick={() => change({ model: card.id })}>
          {chosen ? "Used in chats" : "Use in chats"}
        </button>
      )}
    </li>
  );
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
