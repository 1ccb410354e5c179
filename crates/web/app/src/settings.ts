/** Choices of the reader, in the browser's local storage. */

import { effect, signal } from "@preact/signals";
import type { Sampling, Settings } from "./types";

const PLACE = "taper.settings";
const KEY = "taper.key";

export const NO_SAMPLING: Sampling = {
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  typical_p: null,
  repetition_penalty: null,
  presence_penalty: null,
  frequency_penalty: null,
  seed: null,
  max_tokens: null,
  max_thinking_tokens: null,
};

const DEFAULTS: Settings = {
  sampling: NO_SAMPLING,
  stop: "",
  thinking: "auto",
  effort: "",
  system: "",
  tools: "",
  extra: "",
  presets: [],
  theme: "system",
  enter: "send",
  model: "",
};

function load(): Settings {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE) ?? "{}") as Partial<Settings>;
    return { ...DEFAULTS, ...kept, sampling: { ...NO_SAMPLING, ...kept.sampling } };
  } catch {
    return DEFAULTS;
  }
}

/** Storage can be full or forbidden; the choice then lasts as long as the page. */
function keep(store: () => Storage, name: string, value: string): void {
  try {
    if (value) store().setItem(name, value);
    else store().removeItem(name);
  } catch {
    // Nothing is lost but the next visit's comfort.
  }
}

function recall(name: string): string {
  try {
    return localStorage.getItem(name) ?? sessionStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

export const settings = signal<Settings>(load());

export function change(part: Partial<Settings>): void {
  settings.value = { ...settings.value, ...part };
}

export function changeSampling(part: Partial<Sampling>): void {
  change({ sampling: { ...settings.value.sampling, ...part } });
}

/** Takes a preset's fields; it may be from before some of them were there. */
export function choosePreset(sampling: Partial<Sampling>): void {
  change({ sampling: { ...NO_SAMPLING, ...sampling } });
}

export const apiKey = signal(recall(KEY));

/** The key stays in this tab unless it is to be remembered. */
export function setKey(key: string, remember: boolean): void {
  apiKey.value = key;
  keep(() => localStorage, KEY, remember ? key : "");
  keep(() => sessionStorage, KEY, remember ? "" : key);
}

export function watchSettings(): void {
  effect(() => {
    keep(() => localStorage, PLACE, JSON.stringify(settings.value));
    const { theme } = settings.value;
    if (theme === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
  });
}
