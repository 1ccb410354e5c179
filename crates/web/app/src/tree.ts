/** A conversation is a tree of messages; what is shown is the way to one leaf. */

import type { Message } from "./types";

export type Tree = ReadonlyMap<string, Message>;

/** From the first message to a leaf. */
export function branch(tree: Tree, leaf: string | null): Message[] {
  const way: Message[] = [];
  const seen = new Set<string>();
  for (let id = leaf; id !== null && !seen.has(id); ) {
    const message = tree.get(id);
    if (!message) break;
    seen.add(id);
    way.push(message);
    id = message.parent;
  }
  return way.reverse();
}

/** Children of a message, oldest first; those of null begin the conversation. */
export function children(tree: Tree, parent: string | null): Message[] {
  const list = [...tree.values()].filter((message) => message.parent === parent);
  return list.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

/** The newest leaf under a message. */
export function newestLeaf(tree: Tree, from: string): string {
  let id = from;
  for (let next = children(tree, id).at(-1); next; next = children(tree, id).at(-1)) id = next.id;
  return id;
}

/** The first message that a person would know a conversation by. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n", 1)[0]?.trim() ?? "";
  return line.length > 60 ? `${line.slice(0, 59)}…` : line || "New chat";
}

let last = 0;

/** Milliseconds, and never the same twice: siblings are ordered by it. */
export function now(): number {
  last = Math.max(Date.now(), last + 1);
  return last;
}

export function newId(): string {
  // Pages over plain HTTP have no randomUUID.
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
