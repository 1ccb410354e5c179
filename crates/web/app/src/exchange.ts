/** Conversations as files. */

import type { Attachment, Conversation, Exported, Message, Role, ToolCall } from "./types";
import { now } from "./tree";

export function markdown(conversation: Conversation, messages: Message[]): string {
  const parts = [`# ${conversation.title}`];
  if (conversation.system) parts.push(`## System\n\n${conversation.system}`);
  for (const message of messages) {
    const who = { user: "You", assistant: message.model ?? "Assistant", tool: "Tool" }[message.role];
    const files = (message.attachments ?? []).map((file) => `*File: ${file.name}*`);
    const calls = (message.calls ?? []).map((call) => `\`\`\`json\n${call.name}(${call.arguments})\n\`\`\``);
    parts.push([`## ${who}`, ...files, message.content, ...calls].filter(Boolean).join("\n\n"));
  }
  return `${parts.join("\n\n")}\n`;
}

export function save(name: string, kind: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A title as a file's name. */
export function fileName(title: string, ending: string): string {
  const plain = title.replace(/[^\p{L}\p{N} _-]/gu, "").trim().replace(/\s+/g, "-").slice(0, 60);
  return `${plain || "conversation"}.${ending}`;
}

type Fields = Record<string, unknown>;

function object(value: unknown, what: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${what} is no object`);
  return value as Fields;
}

function list(value: unknown, what: string): unknown[] {
  if (!Array.isArray(value)) throw new Error(`${what} is no list`);
  return value;
}

const text = (value: unknown): string => (typeof value === "string" ? value : "");
const orNull = (value: unknown): string | null => (typeof value === "string" ? value : null);
const time = (value: unknown): number => (typeof value === "number" && Number.isFinite(value) ? value : now());

/** Takes over what is known, field by field: a file can come from anywhere. */
export function parse(json: string): Exported {
  const file = object(JSON.parse(json), "the file");
  if (file["format"] !== "taper-conversations" || file["version"] !== 1) {
    throw new Error("This is no file of exported conversations");
  }
  const conversations = list(file["conversations"], "conversations").map((entry) => {
    const both = object(entry, "a conversation");
    return {
      conversation: conversation(object(both["conversation"], "conversation")),
      messages: list(both["messages"], "messages").map((one) => message(object(one, "a message"))),
    };
  });
  return { format: "taper-conversations", version: 1, conversations };
}

function conversation(from: Fields): Conversation {
  const made: Conversation = {
    id: text(from["id"]),
    title: text(from["title"]) || "Imported",
    created: time(from["created"]),
    updated: time(from["updated"]),
    leaf: orNull(from["leaf"]),
  };
  if (typeof from["system"] === "string") made.system = from["system"];
  return made;
}

const ROLES: readonly string[] = ["user", "assistant", "tool"] satisfies Role[];

function message(from: Fields): Message {
  const role = text(from["role"]);
  if (!ROLES.includes(role)) throw new Error(`"${role}" is no role of a message`);
  const made: Message = {
    id: text(from["id"]),
    conversation: text(from["conversation"]),
    parent: orNull(from["parent"]),
    role: role as Role,
    content: text(from["content"]),
    created: time(from["created"]),
  };
  for (const name of ["reasoning", "call", "model", "finish"] as const) {
    if (typeof from[name] === "string") made[name] = from[name];
  }
  if (Array.isArray(from["calls"])) made.calls = from["calls"].map((one) => call(object(one, "a call")));
  if (Array.isArray(from["attachments"])) {
    made.attachments = from["attachments"].map((one) => attachment(object(one, "a file")));
  }
  return made;
}

function call(from: Fields): ToolCall {
  return { id: text(from["id"]), name: text(from["name"]), arguments: text(from["arguments"]) };
}

function attachment(from: Fields): Attachment {
  const data = text(from["data"]);
  const image = from["kind"] === "image" && /^data:image\/(png|jpeg|webp|gif);base64,/.test(data);
  return { kind: image ? "image" : "text", name: text(from["name"]), data };
}
