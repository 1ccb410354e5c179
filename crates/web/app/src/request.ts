/** From a conversation and the settings to a request, and to commands that say the same. */

import type { Attachment, Message, ModelCard, Settings } from "./types";

type Part = { type: "text"; text: string } | { type: "image_url"; image_url: { url: string } };

interface WireMessage {
  role: string;
  content: string | Part[] | null;
  reasoning_content?: string;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

/** A file as text, in a fence that nothing in it closes. */
function asText({ name, data }: Attachment): string {
  const longest = Math.max(2, ...Array.from(data.matchAll(/`+/g), (run) => run[0].length));
  const fence = "`".repeat(longest + 1);
  return `File: ${name.replace(/[\r\n]/g, " ")}\n${fence}\n${data.replace(/\n$/, "")}\n${fence}`;
}

function userContent(message: Message): string | Part[] {
  const files = message.attachments ?? [];
  const texts = files.filter((file) => file.kind === "text").map(asText);
  const text = [...texts, message.content].filter(Boolean).join("\n\n");
  const images = files.filter((file) => file.kind === "image");
  if (images.length === 0) return text;
  const parts: Part[] = images.map((image) => ({ type: "image_url", image_url: { url: image.data } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

function wire(message: Message): WireMessage {
  if (message.role === "user") return { role: "user", content: userContent(message) };
  if (message.role === "tool") {
    return { role: "tool", content: message.content, tool_call_id: message.call ?? "" };
  }
  const made: WireMessage = { role: "assistant", content: message.content };
  if (message.reasoning) made.reasoning_content = message.reasoning;
  if (message.calls?.length) {
    made.tool_calls = message.calls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  }
  return made;
}

/** Tools as a reader wrote them; an error says what is wrong. */
export function parseTools(text: string): unknown[] {
  if (!text.trim()) return [];
  const tools: unknown = JSON.parse(text);
  if (!Array.isArray(tools)) throw new Error("Tools are a JSON list");
  return tools.map((tool: unknown) => {
    if (typeof tool !== "object" || tool === null) throw new Error("A tool is a JSON object");
    return "function" in tool ? tool : { type: "function", function: tool };
  });
}

/** Further fields as a reader wrote them; an error says what is wrong. */
export function parseExtra(text: string): Record<string, unknown> {
  if (!text.trim()) return {};
  const fields: unknown = JSON.parse(text);
  if (typeof fields !== "object" || fields === null || Array.isArray(fields)) throw new Error("Fields are a JSON object");
  return fields as Record<string, unknown>;
}

/** The fields of a request that the settings say. */
export function fields(settings: Settings): Record<string, unknown> {
  const set = Object.entries(settings.sampling).filter(([, value]) => value !== null);
  const made: Record<string, unknown> = Object.fromEntries(set);
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length > 0) made["stop"] = stop;
  if (settings.thinking !== "auto") made["enable_thinking"] = settings.thinking === "on";
  if (settings.effort) made["reasoning_effort"] = settings.effort;
  const tools = parseTools(settings.tools);
  if (tools.length > 0) made["tools"] = tools;
  return { ...made, ...parseExtra(settings.extra) };
}

export interface Ask {
  model: string;
  system: string;
  messages: Message[];
  settings: Settings;
  /** The last message is the assistant's, and is to be gone on with. */
  resume: boolean;
}

export function body({ model, system, messages, settings, resume }: Ask): Record<string, unknown> {
  const head: WireMessage[] = system.trim() ? [{ role: "system", content: system }] : [];
  return {
    ...(model ? { model } : {}),
    ...fields(settings),
    messages: [...head, ...messages.map(wire)],
    ...(resume ? { continue_final_message: true, add_generation_prompt: false } : {}),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
}

/** Quoted for a POSIX shell. */
export function quote(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

export function curl(settings: Settings, model: string, base: string, hasKey: boolean): string {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const messages = [...system, { role: "user", content: "Hello" }];
  const request = { ...(model ? { model } : {}), messages, ...fields(settings) };
  const lines = [`curl ${quote(`${base}v1/chat/completions`)}`, `-H 'Content-Type: application/json'`];
  if (hasKey) lines.push(`-H "Authorization: Bearer $TAPER_API_KEY"`);
  lines.push(`-d ${quote(JSON.stringify(request))}`);
  return lines.join(" \\\n  ");
}

/** Flags of `taper serve` that the page offers; empty ones are left out. */
export interface ServeFlags {
  model: string;
  host: string;
  port: string;
  context: string;
  kv: string;
  device: string;
  threads: string;
  key: boolean;
}

export function serveCommand(flags: ServeFlags): string {
  const words: [string, string][] = [
    ["--host", flags.host],
    ["--port", flags.port],
    ["--max-model-len", flags.context],
    ["--kv-cache-dtype", flags.kv],
    ["--device", flags.device],
    ["--threads", flags.threads],
  ];
  const set = words.filter(([, value]) => value.trim()).map(([flag, value]) => `${flag} ${quote(value.trim())}`);
  const model = flags.model.trim() ? ` ${quote(flags.model.trim())}` : "";
  return [`${flags.key ? "TAPER_API_KEY=… " : ""}taper serve${model}`, ...set].join(" \\\n  ");
}

export function sees(card: ModelCard | undefined): boolean {
  return card?.input_modalities?.includes("image") ?? false;
}
