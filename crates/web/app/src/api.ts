/** The server. */

import { signal } from "@preact/signals";
import { apiKey } from "./settings";
import { events, lines } from "./sse";
import type { ModelCard, Progress } from "./types";

/** The server wants a key, or another one. */
export const keyWanted = signal(false);

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** Relative, so that a server behind a path of a proxy works. */
function url(path: string): string {
  return new URL(path, document.baseURI.split("#")[0]).href;
}

export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (apiKey.value) headers.set("authorization", `Bearer ${apiKey.value}`);
  let response: Response;
  try {
    response = await fetch(url(path), { ...init, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it running?", 0);
  }
  if (response.ok) return response;
  if (response.status === 401) keyWanted.value = true;
  throw new ApiError(await reason(response), response.status);
}

async function reason(response: Response): Promise<string> {
  try {
    const { error } = (await response.json()) as { error?: { message?: string } | string };
    const message = typeof error === "string" ? error : error?.message;
    if (message) return message;
  } catch {
    // A proxy's page, say.
  }
  return `The server answered ${response.status} ${response.statusText}`.trim();
}

export async function models(): Promise<ModelCard[]> {
  const response = await call("v1/models");
  return ((await response.json()) as { data: ModelCard[] }).data;
}

function post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { "content-type": "application/json" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), ...(signal && { signal }) });
}

interface WireProgress {
  status?: string;
  completed?: number;
  total?: number;
  error?: { message?: string } | string;
}

function progress(data: string): Progress {
  const { status = "", completed = 0, total = 0, error } = JSON.parse(data) as WireProgress;
  if (error) throw new ApiError(typeof error === "string" ? error : (error.message ?? "It failed"), 200);
  return { text: status, completed, total };
}

/** Loads one of several models. */
export async function* loadModel(model: string): AsyncGenerator<Progress> {
  const { body } = await post("models/load", { model, stream: true });
  if (body) for await (const data of unbroken(body, events)) yield progress(data);
}

export async function unloadModel(model: string): Promise<void> {
  await post("models/unload", { model });
}

export async function deleteModel(model: string): Promise<void> {
  const path = model.split("/").map(encodeURIComponent).join("/");
  await call(`v1/models/${path}`, { method: "DELETE" });
}

/** Downloads a model; the server stops when this is aborted, and goes on there the next time. */
export async function* pull(model: string, signal: AbortSignal): AsyncGenerator<Progress> {
  const { body } = await post("api/pull", { model }, signal);
  let last = "";
  if (body) {
    for await (const data of unbroken(body, lines)) {
      const step = progress(data);
      last = step.text;
      yield step;
    }
  }
  if (last !== "success") throw new ApiError(CUT, 0);
}

export async function version(): Promise<string> {
  return ((await (await call("version")).json()) as { version: string }).version;
}

export async function metricsText(signal?: AbortSignal): Promise<string> {
  return (await call("metrics", signal ? { signal } : {})).text();
}

interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
  completion_tokens_details?: { reasoning_tokens?: number };
}

interface CallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

/** What a chunk of a stream brings. */
export interface Chunk {
  content?: string;
  reasoning?: string;
  calls?: CallDelta[];
  finish?: string;
  usage?: Usage;
  model?: string;
}

interface WireChunk {
  model?: string;
  error?: { message?: string };
  usage?: Usage | null;
  choices?: {
    delta?: { content?: string | null; reasoning_content?: string | null; tool_calls?: CallDelta[] };
    finish_reason?: string | null;
  }[];
}

const CUT = "The connection was cut";

/** Browsers have words of their own for it. */
async function* unbroken(
  body: ReadableStream<Uint8Array>,
  parts: (body: ReadableStream<Uint8Array>) => AsyncGenerator<string>,
): AsyncGenerator<string> {
  try {
    yield* parts(body);
  } catch (error) {
    throw error instanceof TypeError ? new ApiError(CUT, 0) : error;
  }
}

export async function* chat(body: unknown, signal: AbortSignal): AsyncGenerator<Chunk> {
  const response = await post("v1/chat/completions", body, signal);
  if (!response.body) throw new ApiError("The server sent no stream", response.status);
  for await (const data of unbroken(response.body, events)) {
    if (data === "[DONE]") return;
    const wire = JSON.parse(data) as WireChunk;
    if (wire.error) throw new ApiError(wire.error.message ?? "The stream ended with an error", 200);
    yield chunk(wire);
  }
  throw new ApiError(CUT, 0);
}

function chunk({ model, usage, choices }: WireChunk): Chunk {
  const made: Chunk = {};
  const choice = choices?.[0];
  if (model) made.model = model;
  if (usage) made.usage = usage;
  if (choice?.finish_reason) made.finish = choice.finish_reason;
  if (choice?.delta?.content) made.content = choice.delta.content;
  if (choice?.delta?.reasoning_content) made.reasoning = choice.delta.reasoning_content;
  if (choice?.delta?.tool_calls) made.calls = choice.delta.tool_calls;
  return made;
}
