/** What the page shows: conversations, the open one, models. */

import { computed, signal } from "@preact/signals";
import * as api from "./api";
import * as db from "./db";
import { settings } from "./settings";
import { branch, newestLeaf, newId, now, type Tree } from "./tree";
import type { Conversation, Exported, Message, ModelCard } from "./types";

export const conversations = signal<Conversation[]>([]);
export const tree = signal<Tree>(new Map());
export const models = signal<ModelCard[]>([]);
export const serverDown = signal("");
/** Said once to screen readers, and shown for a moment. */
export const notice = signal("");

export type Page = "chat" | "models" | "machine" | "settings";
export interface Route {
  page: Page;
  /** A conversation; null is a new one. */
  id: string | null;
}

export const route = signal<Route>(parseRoute(location.hash));

export const current = computed(() => conversations.value.find((c) => c.id === route.value.id) ?? null);
export const shown = computed(() => branch(tree.value, current.value?.leaf ?? null));

/** The model that is asked: the chosen one, while it is served. */
export const model = computed(
  () => models.value.find((card) => card.id === settings.value.model) ?? models.value[0],
);

function parseRoute(hash: string): Route {
  const [page = "", id] = hash.replace(/^#\/?/, "").split("/");
  if (page === "c" && id) return { page: "chat", id };
  if (page === "models" || page === "machine" || page === "settings") return { page, id: null };
  return { page: "chat", id: null };
}

export function go(page: Page, id: string | null = null): void {
  location.hash = page !== "chat" ? `#/${page}` : id ? `#/c/${id}` : "#/";
}

async function follow(): Promise<void> {
  const next = parseRoute(location.hash);
  const list = next.id ? await db.messages(next.id) : [];
  // Another click may have come first.
  if (parseRoute(location.hash).id !== next.id) return;
  if (next.id !== route.value.id) tree.value = new Map(list.map((message) => [message.id, message]));
  route.value = next;
}

export async function start(): Promise<void> {
  window.addEventListener("hashchange", () => void follow());
  void refreshModels();
  const list = await db.conversations().catch(() => [] as Conversation[]);
  conversations.value = sorted(list);
  const { id } = route.value;
  if (!id) return;
  const own = await db.messages(id);
  if (route.value.id === id) tree.value = new Map(own.map((message) => [message.id, message]));
  if (!list.some((c) => c.id === id)) go("chat");
}

export async function refreshModels(): Promise<void> {
  try {
    models.value = await api.models();
    serverDown.value = "";
  } catch (error) {
    // A wish for a key has a dialogue of its own.
    if (!(error instanceof api.ApiError && error.status === 401)) serverDown.value = text(error);
  }
}

function sorted(list: Conversation[]): Conversation[] {
  return [...list].sort((a, b) => b.updated - a.updated);
}

export function text(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Shows a word for a moment. */
export function say(words: string): void {
  notice.value = words;
  setTimeout(() => {
    if (notice.value === words) notice.value = "";
  }, 2500);
}

export async function putConversation(conversation: Conversation): Promise<void> {
  const others = conversations.value.filter((c) => c.id !== conversation.id);
  conversations.value = sorted([conversation, ...others]);
  await db.saveConversation(conversation);
}

export async function updateConversation(id: string, part: Partial<Conversation>): Promise<void> {
  const old = conversations.value.find((c) => c.id === id);
  if (old) await putConversation({ ...old, ...part });
}

/** Puts a message into the tree that is shown, if it is its own, and keeps it. */
export async function putMessage(message: Message): Promise<void> {
  if (route.value.id === message.conversation) showMessage(message);
  await db.saveMessages([message]);
}

export function showMessage(message: Message): void {
  const next = new Map(tree.value);
  next.set(message.id, message);
  tree.value = next;
}

export async function newConversation(title: string): Promise<Conversation> {
  const at = now();
  const made: Conversation = { id: newId(), title, created: at, updated: at, leaf: null };
  await putConversation(made);
  tree.value = new Map();
  route.value = { page: "chat", id: made.id };
  history.pushState(null, "", `#/c/${made.id}`);
  return made;
}

export async function deleteConversation(id: string): Promise<void> {
  conversations.value = conversations.value.filter((c) => c.id !== id);
  if (route.value.id === id) go("chat");
  await db.remove(id);
}

export async function deleteAll(): Promise<void> {
  conversations.value = [];
  tree.value = new Map();
  if (route.value.id) go("chat");
  await db.clear();
}

/** Shows the branch through a message. */
export async function choose(message: Message): Promise<void> {
  await updateConversation(message.conversation, { leaf: newestLeaf(tree.value, message.id) });
}

export async function exported(ids: string[]): Promise<Exported> {
  const wanted = conversations.value.filter((c) => ids.includes(c.id));
  const each = wanted.map(async (conversation) => ({ conversation, messages: await db.messages(conversation.id) }));
  return { format: "taper-conversations", version: 1, conversations: await Promise.all(each) };
}

/** Takes conversations in, under new ids; how many there were. */
export async function adopt(file: Exported): Promise<number> {
  for (const { conversation, messages } of file.conversations) {
    const names = new Map(messages.map((message) => [message.id, newId()]));
    const id = newId();
    const renamed = messages.map((message) => ({
      ...message,
      id: names.get(message.id) ?? newId(),
      parent: message.parent === null ? null : (names.get(message.parent) ?? null),
      conversation: id,
    }));
    await db.saveMessages(renamed);
    const leaf = conversation.leaf === null ? null : (names.get(conversation.leaf) ?? null);
    await putConversation({ ...conversation, id, leaf });
  }
  return file.conversations.length;
}
