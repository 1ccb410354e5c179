/** The server. */

import { signal } from "@preact/signals";
import { apiKey } from "./settings";
import { events } from "./sse";
import type { ModelCard } from "./types";

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
    const body = (await response.json()) as { error?: { message?: string } };
    if (body.error?.message) return body.error.message;
  } catch {
    // A proxy's page, say.
  }
  return `The server answered ${response.status} ${response.statusText}`.trim();
}

export async function models(): Promise<ModelCard[]> {
  const response = await call("v1/models");
  return ((await response.json()) as { data: ModelCard[] }).data;
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
async function* unbroken(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  try {
    yield* events(body);
  } catch (error) {
    throw error instanceof TypeError ? new ApiError(CUT, 0) : error;
  }
}

export async function* chat(body: unknown, signal: AbortSignal): AsyncGenerator<Chunk> {
  const headers = { "content-type": "application/json" };
  const response = await call("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.body) throw new ApiError("The server sent no stream", response.status);
  for await (const data of unbroken(response.body)) {
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
