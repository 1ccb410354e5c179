/** Conversations in the browser's IndexedDB. */

import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import type { Conversation, Message } from "./types";

interface Schema extends DBSchema {
  conversations: { key: string; value: Conversation };
  messages: { key: string; value: Message; indexes: { conversation: string } };
}

let opened: Promise<IDBPDatabase<Schema>> | undefined;

function db(): Promise<IDBPDatabase<Schema>> {
  opened ??= openDB<Schema>("taper", 1, {
    upgrade(database) {
      database.createObjectStore("conversations", { keyPath: "id" });
      database.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    },
  });
  return opened;
}

export async function conversations(): Promise<Conversation[]> {
  return (await db()).getAll("conversations");
}

export async function messages(conversation: string): Promise<Message[]> {
  return (await db()).getAllFromIndex("messages", "conversation", conversation);
}

export async function saveConversation(conversation: Conversation): Promise<void> {
  await (await db()).put("conversations", conversation);
}

export async function saveMessages(list: Message[]): Promise<void> {
  const tx = (await db()).transaction("messages", "readwrite");
  await Promise.all([...list.map((message) => tx.store.put(message)), tx.done]);
}

export async function remove(conversation: string): Promise<void> {
  const tx = (await db()).transaction(["conversations", "messages"], "readwrite");
  const own = tx.objectStore("messages");
  const keys = await own.index("conversation").getAllKeys(conversation);
  await Promise.all(keys.map((key) => own.delete(key)));
  await tx.objectStore("conversations").delete(conversation);
  await tx.done;
}

export async function clear(): Promise<void> {
  const tx = (await db()).transaction(["conversations", "messages"], "readwrite");
  await Promise.all([tx.objectStore("conversations").clear(), tx.objectStore("messages").clear(), tx.done]);
}

/** The conversations that have a text, with a piece of where it stands; the newest first. */
export async function search(text: string, most: number): Promise<{ conversation: Conversation; snippet: string }[]> {
  const wanted = text.toLowerCase();
  const snippets = new Map<string, string>();
  for (let at = await (await db()).transaction("messages").store.openCursor(); at; at = await at.continue()) {
    const { conversation, content } = at.value;
    const found = snippets.has(conversation) ? -1 : content.toLowerCase().indexOf(wanted);
    if (found >= 0) snippets.set(conversation, around(content, found, wanted.length));
  }
  const all = await conversations();
  const hits = all.filter((c) => snippets.has(c.id) || c.title.toLowerCase().includes(wanted));
  hits.sort((a, b) => b.updated - a.updated);
  return hits.slice(0, most).map((conversation) => ({ conversation, snippet: snippets.get(conversation.id) ?? "" }));
}

function around(text: string, at: number, length: number): string {
  const from = Math.max(0, at - 30);
  const piece = text.slice(from, at + length + 60).replace(/\s+/g, " ");
  return (from > 0 ? "…" : "") + piece;
}
