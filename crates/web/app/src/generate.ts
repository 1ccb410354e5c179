/** Asking the model, and what its answers do to a conversation. */

import { computed, signal } from "@preact/signals";
import * as api from "./api";
import * as db from "./db";
import { body } from "./request";
import { settings } from "./settings";
import {
  conversations, current, model, newConversation, putMessage, say, shown, showMessage, text, tree, updateConversation, route,
} from "./store";
import { branch, newId, now, titleOf } from "./tree";
import type { Attachment, Conversation, Message, Stats, ToolCall } from "./types";

/** Answers that are being written, by message; each changes at most once a frame. */
export const live = signal<ReadonlyMap<string, Message>>(new Map());

const stops = new Map<string, AbortController>();

/** Fewer tokens say nothing of the speed. */
const FEW = 4;

/** Milliseconds: tokens that arrive together say nothing either. */
const LEAST = 20;

/** How often an answer that is being written is kept. */
const KEEP_EVERY = 1000;

/** Conversations with an answer that is being written; unlike `live` it changes only with them. */
const busy = computed(() => [...new Set(Array.from(live.value.values(), (m) => m.conversation))].sort().join(" "));

export function isBusy(conversation: string | null): boolean {
  return conversation !== null && busy.value.split(" ").includes(conversation);
}

export function stop(conversation: string | null): void {
  for (const message of live.value.values()) {
    if (message.conversation === conversation) stops.get(message.id)?.abort();
  }
}

function setLive(message: Message | null, id: string): void {
  const next = new Map(live.value);
  if (message) next.set(id, message);
  else next.delete(id);
  live.value = next;
}

export async function send(content: string, attachments: Attachment[]): Promise<void> {
  const conversation = current.value ?? (await newConversation(titleOf(content || attachments[0]?.name || "")));
  await ask(conversation, conversation.leaf, content, attachments);
}

/** A message of the user, and the answer to it. */
async function ask(
  conversation: Conversation,
  parent: string | null,
  content: string,
  attachments: Attachment[],
): Promise<void> {
  const message: Message = {
    id: newId(),
    conversation: conversation.id,
    parent,
    role: "user",
    content,
    created: now(),
  };
  if (attachments.length > 0) message.attachments = attachments;
  // Another conversation may be shown by the time that this is kept.
  const way = [...branch(tree.value, parent), message];
  await putMessage(message);
  await answer(message, way);
}

/** The same question in other words, as a branch beside it. */
export async function edit(message: Message, content: string): Promise<void> {
  const conversation = conversations.value.find((c) => c.id === message.conversation);
  if (!conversation) return;
  if (message.role === "user") return ask(conversation, message.parent, content, message.attachments ?? []);
  const { stats: _, finish: __, error: ___, ...kept } = message;
  const other: Message = { ...kept, id: newId(), content, created: now() };
  await putMessage(other);
  await updateConversation(conversation.id, { leaf: other.id });
}

/** Another answer to the same message. */
export async function regenerate(message: Message): Promise<void> {
  const question = message.parent === null ? undefined : tree.value.get(message.parent);
  if (question) await answer(question, branch(tree.value, question.id));
}

/** What a tool gave, and the answer once each call has its result. */
export async function giveResult(message: Message, call: ToolCall, result: string): Promise<void> {
  const given = shown.value.filter((other) => other.role === "tool").map((other) => other.call);
  const made: Message = {
    id: newId(),
    conversation: message.conversation,
    parent: shown.value.at(-1)?.id ?? message.id,
    role: "tool",
    call: call.id,
    content: result,
    created: now(),
  };
  const way = [...shown.value, made];
  const rest = (message.calls ?? []).filter((other) => other.id !== call.id && !given.includes(other.id));
  await putMessage(made);
  await updateConversation(message.conversation, { leaf: made.id });
  if (rest.length === 0) await answer(made, way);
}

async function answer(question: Message, way: Message[]): Promise<void> {
  const message: Message = {
    id: newId(),
    conversation: question.conversation,
    parent: question.id,
    role: "assistant",
    content: "",
    created: now(),
  };
  await run(message, way, false);
}

/** Goes on with an answer that was cut. */
export async function resume(message: Message): Promise<void> {
  const { error: _, finish: __, ...kept } = message;
  await run(kept, branch(tree.value, message.id), true);
}

async function run(message: Message, messages: Message[], resuming: boolean): Promise<void> {
  const conversation = conversations.value.find((c) => c.id === message.conversation);
  if (!conversation) return;
  const system = conversation.system ?? settings.value.system;
  const stopper = new AbortController();
  stops.set(message.id, stopper);
  const writing = new Writing(message);
  setLive(message, message.id);
  if (route.value.id === message.conversation) showMessage(message);
  await db.saveMessages([{ ...message, finish: "interrupted" }]);
  await updateConversation(conversation.id, { leaf: message.id, updated: now() });
  try {
    const request = body({
      model: model.value?.id ?? "",
      system,
      messages,
      settings: settings.value,
      resume: resuming,
    });
    for await (const chunk of api.chat(request, stopper.signal)) writing.take(chunk);
  } catch (error) {
    writing.end(stopper.signal.aborted ? { finish: "stopped" } : { error: text(error) });
  }
  stops.delete(message.id);
  const finished = writing.close();
  if (route.value.id === finished.conversation) showMessage(finished);
  setLive(null, finished.id);
  await keep(finished).catch((error: unknown) => say(`Not kept: ${text(error)}`));
}

/** Keeps a message, unless its conversation was deleted while it was written. */
async function keep(message: Message): Promise<void> {
  if (conversations.value.some((c) => c.id === message.conversation)) await db.saveMessages([message]);
}

/** An answer as it grows: shown once a frame, kept once a second. */
class Writing {
  private readonly asked = performance.now();
  private firstAt = 0;
  private kept = performance.now();
  private frame = 0;

  constructor(private message: Message) {}

  take(chunk: api.Chunk): void {
    const { message } = this;
    const next: Message = { ...message };
    if (chunk.content || chunk.reasoning || chunk.calls) this.firstAt ||= performance.now();
    if (chunk.model) next.model = chunk.model;
    if (chunk.content) next.content += chunk.content;
    if (chunk.reasoning) next.reasoning = (message.reasoning ?? "") + chunk.reasoning;
    if (chunk.calls) next.calls = withCalls(message.calls ?? [], chunk.calls);
    if (chunk.finish) next.finish = chunk.finish;
    if (chunk.usage) next.stats = this.stats(chunk.usage);
    this.message = next;
    // A page in the background has no frames.
    if (document.hidden) this.show();
    else this.frame ||= requestAnimationFrame(() => this.show());
  }

  end(part: Partial<Message>): void {
    this.message = { ...this.message, ...part };
  }

  close(): Message {
    cancelAnimationFrame(this.frame);
    return this.message;
  }

  private show(): void {
    this.frame = 0;
    setLive(this.message, this.message.id);
    const at = performance.now();
    if (at - this.kept < KEEP_EVERY) return;
    this.kept = at;
    void keep({ ...this.message, finish: "interrupted" }).catch(() => undefined);
  }

  private stats(usage: NonNullable<api.Chunk["usage"]>): Stats {
    const took = performance.now() - this.firstAt;
    const after = usage.completion_tokens - 1;
    return {
      prompt: usage.prompt_tokens,
      completion: usage.completion_tokens,
      cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
      reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0,
      first: this.firstAt ? this.firstAt - this.asked : 0,
      rate: this.firstAt && after >= FEW && took >= LEAST ? (after * 1000) / took : 0,
    };
  }
}

function withCalls(calls: ToolCall[], deltas: NonNullable<api.Chunk["calls"]>): ToolCall[] {
  const next = [...calls];
  for (const delta of deltas) {
    const old = next[delta.index] ?? { id: "", name: "", arguments: "" };
    next[delta.index] = {
      id: delta.id ?? old.id,
      name: old.name + (delta.function?.name ?? ""),
      arguments: old.arguments + (delta.function?.arguments ?? ""),
    };
  }
  return next;
}
