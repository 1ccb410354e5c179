import { useRef, useState } from "preact/hooks";
import { Choice, NumberField, TextField } from "../components/Fields";
import { parse, save } from "../exchange";
import { parseExtra, parseTools } from "../request";
import { apiKey, change, changeSampling, choosePreset, NO_SAMPLING, setKey, settings } from "../settings";
import { adopt, conversations, deleteAll, exported, refreshModels, say, text } from "../store";
import type { Sampling } from "../types";
import { Commands } from "./Commands";
import { Sheet } from "./Header";

export function Settings() {
  return (
    <Sheet title="Settings">
      <Generation />
      <Prompt />
      <Appearance />
      <Access />
      <Data />
      <Commands />
    </Sheet>
  );
}

interface Field {
  name: keyof Sampling;
  label: string;
  hint: string;
  min?: number;
  max?: number;
  step?: number;
}

const FIELDS: Field[] = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest token; up to 2", min: 0, max: 2 },
  { name: "top_p", label: "Top p", hint: "Tokens of this probability together, 0 to 1", min: 0, max: 1 },
  { name: "top_k", label: "Top k", hint: "This many likeliest tokens; 0 is all", min: -1, step: 1 },
  { name: "min_p", label: "Min p", hint: "Least part of the likeliest one's probability", min: 0, max: 1 },
  { name: "typical_p", label: "Typical p", hint: "Tokens of expected surprise, 0 to 1", min: 0, max: 1 },
  { name: "repetition_penalty", label: "Repetition penalty", hint: "Above 1 avoids tokens of prompt and answer", min: 0.01, max: 2 },
  { name: "presence_penalty", label: "Presence penalty", hint: "-2 to 2, for tokens that are in the answer", min: -2, max: 2 },
  { name: "frequency_penalty", label: "Frequency penalty", hint: "-2 to 2, for each time a token is in it", min: -2, max: 2 },
  { name: "seed", label: "Seed", hint: "The same seed gives the same answer", min: -1, step: 1 },
  { name: "max_tokens", label: "Most tokens of an answer", hint: "By default what the context has room for", min: 1, step: 1 },
  { name: "max_thinking_tokens", label: "Most tokens of thinking", hint: "0 lets the model not think", min: 0, step: 1 },
];

const EFFORTS = [
  ["", "the model's"],
  ["none", "none"],
  ["minimal", "minimal"],
  ["low", "low"],
  ["medium", "medium"],
  ["high", "high"],
] as const;

function Generation() {
  const { sampling, stop, thinking, effort, extra } = settings.value;
  const reset = () => change({ sampling: NO_SAMPLING, stop: "", thinking: "auto", effort: "", extra: "" });
  const wrong = wrongness(parseExtra, extra);
  return (
    <section class="card">
      <header class="row">
        <h2>Generation</h2>
        <button type="button" onClick={reset}>
          Reset
        </button>
      </header>
      <p class="quiet">What is empty is left to the model.</p>
      <div class="fields">
        {FIELDS.map(({ name, ...rest }) => (
          <NumberField key={name} {...rest} value={sampling[name]} set={(value) => changeSampling({ [name]: value })} />
        ))}
        <Choice
          label="Thinking"
          value={thinking}
          options={[
            ["auto", "the model's"],
            ["on", "on"],
            ["off", "off"],
          ]}
          set={(value) => change({ thinking: value })}
        />
        <Choice label="Effort of reasoning" value={effort} options={EFFORTS} set={(value) => change({ effort: value })} />
        <TextField label="Stop strings" hint="One a line" rows={2} value={stop} set={(value) => change({ stop: value })} />
        <TextField
          label="Further fields"
          hint={wrong || "A JSON object of any other field of /v1/chat/completions"}
          rows={2}
          placeholder='{"logit_bias": {"42": -5}, "response_format": {"type": "json_object"}}'
          value={extra}
          set={(value) => change({ extra: value })}
        />
      </div>
    </section>
  );
}

/** Why a reader's JSON cannot be used. */
function wrongness(parse: (json: string) => unknown, json: string): string {
  try {
    parse(json);
    return "";
  } catch (error) {
    return text(error);
  }
}

function Prompt() {
  const { system, tools, presets, sampling } = settings.value;
  const [name, setName] = useState("");
  const wrong = wrongness(parseTools, tools);
  const keep = () => {
    const others = presets.filter((preset) => preset.name !== name.trim());
    change({ presets: [...others, { name: name.trim(), system, sampling }] });
    setName("");
    say("Preset kept");
  };
  return (
    <section class="card">
      <h2>System prompt and presets</h2>
      <div class="fields">
        <TextField label="System prompt of new chats" rows={4} value={system} set={(value) => change({ system: value })} />
        <TextField
          label="Tools"
          hint={wrong || "A JSON list of functions: name, description, parameters. You give their results."}
          rows={3}
          placeholder='[{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'
          value={tools}
          set={(value) => change({ tools: value })}
        />
      </div>
      <ul class="presets">
        {presets.map((preset) => (
          <li key={preset.name} class="row">
            <span>{preset.name}</span>
            <button
              type="button"
              aria-label={`Use preset ${preset.name}`}
              onClick={() => {
                change({ system: preset.system });
                choosePreset(preset.sampling);
              }}
            >
              Use
            </button>
            <button
              type="button"
              aria-label={`Delete preset ${preset.name}`}
              onClick={() => change({ presets: presets.filter((other) => other.name !== preset.name) })}
            >
              Delete
            </button>
          </li>
        ))}
      </ul>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          if (name.trim()) keep();
        }}
      >
        <input
          aria-label="Name of the preset"
          placeholder="Name of a preset"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <button type="submit" disabled={!name.trim()}>
          Keep as preset
        </button>
      </form>
    </section>
  );
}

function Appearance() {
  const { theme, enter } = settings.value;
  return (
    <section class="card">
      <h2>Appearance</h2>
      <div class="fields">
        <Choice
          label="Theme"
          value={theme}
          options={[
            ["system", "as the system"],
            ["light", "light"],
            ["dark", "dark"],
          ]}
          set={(value) => change({ theme: value })}
        />
        <Choice
          label="Enter"
          value={enter}
          options={[
            ["send", "sends; Shift+Enter is a new line"],
            ["newline", "is a new line; Ctrl+Enter sends"],
          ]}
          set={(value) => change({ enter: value })}
        />
      </div>
    </section>
  );
}

function Access() {
  const [key, set] = useState(apiKey.value);
  return (
    <section class="card">
      <h2>API key</h2>
      <p class="quiet">For a server that was started with a key. It stays in this browser.</p>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          setKey(key.trim(), true);
          void refreshModels();
          say(key.trim() ? "Key kept" : "Key forgotten");
        }}
      >
        <input
          type="password"
          autocomplete="off"
          aria-label="API key"
          value={key}
          onInput={(event) => set(event.currentTarget.value)}
        />
        <button type="submit">Keep</button>
      </form>
    </section>
  );
}

function Data() {
  const picker = useRef<HTMLInputElement>(null);
  const [sure, setSure] = useState(false);
  const all = conversations.value;
  const give = async () => {
    const file = await exported(all.map((conversation) => conversation.id));
    save("taper-conversations.json", "application/json", JSON.stringify(file));
  };
  const take = async (file: File) => {
    try {
      say(`Imported ${await adopt(parse(await file.text()))} conversations`);
    } catch (error) {
      say(`${file.name}: ${text(error)}`);
    }
  };
  return (
    <section class="card">
      <h2>Conversations</h2>
      <p class="quiet">{all.length} in this browser. The server keeps none.</p>
      <div class="row">
        <button type="button" onClick={() => void give()} disabled={all.length === 0}>
          Export all
        </button>
        <input
          ref={picker}
          hidden
          type="file"
          accept=".json,application/json"
          tabIndex={-1}
          aria-label="File of conversations"
          onChange={(event) => {
            const file = event.currentTarget.files?.[0];
            if (file) void take(file);
            event.currentTarget.value = "";
          }}
        />
        <button type="button" onClick={() => picker.current?.click()}>
          Import
        </button>
        <button
          type="button"
          class={sure ? "danger" : ""}
          disabled={all.length === 0}
          onClick={() => {
            if (sure) void deleteAll();
            setSure(!sure);
          }}
        >
          {sure ? "Delete all, for good" : "Delete all"}
        </button>
      </div>
    </section>
  );
}
