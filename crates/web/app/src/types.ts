/** What is kept, and what goes over the wire. */

export type Role = "user" | "assistant" | "tool";

export interface Attachment {
  kind: "text" | "image";
  name: string;
  /** The text, or a data URL. */
  data: string;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it. */
  arguments: string;
}

export interface Stats {
  prompt: number;
  completion: number;
  cached: number;
  reasoning: number;
  /** Milliseconds from the request to its first token. */
  first: number;
  /** Tokens a second from the first token on; 0 if there were too few. */
  rate: number;
}

/** A node of a conversation's tree; answers to one message are siblings. */
export interface Message {
  id: string;
  conversation: string;
  parent: string | null;
  role: Role;
  content: string;
  reasoning?: string;
  calls?: ToolCall[];
  /** For the role `tool`: which call this answers. */
  call?: string;
  attachments?: Attachment[];
  model?: string;
  stats?: Stats;
  finish?: string;
  error?: string;
  created: number;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  /** The last message of the branch that is shown. */
  leaf: string | null;
  /** Instead of the default system prompt. */
  system?: string;
}

export type Thinking = "auto" | "on" | "off";
export type Theme = "system" | "light" | "dark";

/** What a request says of sampling; null leaves it to the server. */
export interface Sampling {
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  typical_p: number | null;
  repetition_penalty: number | null;
  presence_penalty: number | null;
  frequency_penalty: number | null;
  seed: number | null;
  max_tokens: number | null;
  max_thinking_tokens: number | null;
}

export interface Preset {
  name: string;
  system: string;
  sampling: Sampling;
}

export interface Settings {
  sampling: Sampling;
  /** One string a line. */
  stop: string;
  thinking: Thinking;
  effort: string;
  system: string;
  /** A JSON list of functions, as in the API's `tools`. */
  tools: string;
  /** A JSON object of further fields of the request. */
  extra: string;
  presets: Preset[];
  theme: Theme;
  enter: "send" | "newline";
  model: string;
}

export interface ModelCard {
  id: string;
  owned_by: string;
  root?: string;
  parent?: string | null;
  max_model_len?: number;
  /** Not every server says it. */
  input_modalities?: string[];
  /** In a server of several models. */
  status?: { value: "unloaded" | "loading" | "loaded" | "unloading" };
  file_bytes?: number;
  /** Bytes of memory that are kept for it. */
  memory_bytes?: number;
  requests?: number;
  pinned?: boolean;
  /** It answers requests that name no model. */
  default?: boolean;
  aliases?: string[];
  /** Models can be downloaded and deleted. */
  can_update?: boolean;
}

/** How far a load or a download is. */
export interface Progress {
  /** What is done at the moment. */
  text: string;
  completed: number;
  /** 0 where it is not known. */
  total: number;
}

/** A file of exported conversations. */
export interface Exported {
  format: "taper-conversations";
  version: 1;
  conversations: { conversation: Conversation; messages: Message[] }[];
}
