import { useComputed } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { copyText, milliseconds, rate, whole } from "../format";
import { edit, giveResult, isBusy, live, regenerate, resume } from "../generate";
import { choose, shown, tree } from "../store";
import { children } from "../tree";
import type { Message as Node, ToolCall } from "../types";
import { Icon, IconButton } from "./Icon";
import { Markdown } from "./Markdown";

export function Message({ message: kept, last }: { message: Node; last: boolean }) {
  // Only the message that is written is rendered again.
  const now = useComputed(() => live.value.get(kept.id)).value;
  const message = now ?? kept;
  const writing = now !== undefined;
  const [editing, setEditing] = useState(false);
  const name = { user: "You", assistant: message.model ?? "Assistant", tool: "Tool result" }[message.role];
  return (
    <article class={`message ${message.role}`} aria-label={name} aria-busy={writing}>
      {editing ? (
        <Editor message={message} close={() => setEditing(false)} />
      ) : (
        <Body message={message} writing={writing} />
      )}
      {message.error && (
        <p class="error" role="alert">
          {message.error}
        </p>
      )}
      {!writing && !editing && <Actions message={message} last={last} edit={() => setEditing(true)} />}
    </article>
  );
}

function Body({ message, writing }: { message: Node; writing: boolean }) {
  const files = message.attachments ?? [];
  if (message.role === "user") {
    return (
      <div class="bubble">
        {files.length > 0 && (
          <ul class="files">
            {files.map((file) => (
              <li key={file.name} class="file">
                {file.kind === "image" ? <img src={file.data} alt={file.name} /> : <Icon name="file" />}
                <span>{file.name}</span>
              </li>
            ))}
          </ul>
        )}
        {message.content && <div class="plain">{message.content}</div>}
      </div>
    );
  }
  if (message.role === "tool") return <pre class="result">{message.content}</pre>;
  const silent = writing && !message.content && !message.reasoning && !message.calls;
  return (
    <>
      {message.reasoning && <Reasoning message={message} writing={writing} />}
      {silent && (
        <p class="waiting" role="status">
          <span class="dot" />
          <span class="hidden">Waiting for the answer</span>
        </p>
      )}
      {message.content && <Markdown text={message.content} finished={!writing} />}
      {message.calls?.map((call) => <Call key={call.id} message={message} call={call} writing={writing} />)}
    </>
  );
}

function Reasoning({ message, writing }: { message: Node; writing: boolean }) {
  const thinking = writing && !message.content && !message.calls;
  const tokens = message.stats?.reasoning;
  return (
    <details class="reasoning">
      <summary>
        {thinking ? "Thinking…" : "Thoughts"}
        {tokens ? <small> {whole(tokens)} tokens</small> : null}
      </summary>
      <Markdown text={message.reasoning ?? ""} finished={!thinking} />
    </details>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function Call({ message, call, writing }: { message: Node; call: ToolCall; writing: boolean }) {
  const [result, setResult] = useState("");
  const open = !writing && !shown.value.some((other) => other.role === "tool" && other.call === call.id);
  return (
    <section class="call" aria-label={`Call of ${call.name}`}>
      <header>
        <Icon name="tool" /> <strong>{call.name}</strong>
      </header>
      <pre tabIndex={0}>{pretty(call.arguments)}</pre>
      {open && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void giveResult(message, call, result);
          }}
        >
          <label class="hidden" for={`result-${call.id}`}>
            Result of {call.name}
          </label>
          <textarea
            id={`result-${call.id}`}
            rows={2}
            placeholder="What the tool gave"
            value={result}
            onInput={(event) => setResult(event.currentTarget.value)}
          />
          <button type="submit">Send result</button>
        </form>
      )}
    </section>
  );
}

function Editor({ message, close }: { message: Node; close: () => void }) {
  const [text, setText] = useState(message.content);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  const done = () => {
    close();
    if (text !== message.content || message.role === "user") void edit(message, text);
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        done();
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done();
        if (event.key !== "Escape") return;
        event.stopPropagation();
        close();
      }}
    >
      <textarea
        ref={area}
        aria-label="Message"
        value={text}
        rows={Math.min(16, text.split("\n").length + 1)}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <div class="row">
        <button type="submit" class="primary">
          {message.role === "user" ? "Send" : "Save"}
        </button>
        <button type="button" onClick={close}>
          Cancel
        </button>
      </div>
    </form>
  );
}

function Actions({ message, last, edit: begin }: { message: Node; last: boolean; edit: () => void }) {
  const busy = isBusy(message.conversation);
  const own = message.role === "assistant";
  const cut = own && last && !message.calls && message.content !== "" && message.finish !== "stop";
  return (
    <div class="actions">
      <Branches message={message} disabled={busy} />
      <IconButton icon="copy" label="Copy message" onClick={() => void copyText(message.content)} />
      {message.role !== "tool" && <IconButton icon="edit" label="Edit message" disabled={busy} onClick={begin} />}
      {own && (
        <IconButton icon="again" label="Regenerate" disabled={busy} onClick={() => void regenerate(message)} />
      )}
      {cut && <IconButton icon="play" label="Continue" disabled={busy} onClick={() => void resume(message)} />}
      {own && <Numbers message={message} />}
    </div>
  );
}

function Branches({ message, disabled }: { message: Node; disabled: boolean }) {
  const all = children(tree.value, message.parent);
  if (all.length < 2) return null;
  const at = all.findIndex((other) => other.id === message.id);
  const step = (by: number) => {
    const other = all[at + by];
    if (other) void choose(other);
  };
  return (
    <span class="branches">
      <IconButton icon="left" label="Previous version" disabled={disabled || at === 0} onClick={() => step(-1)} />
      <span aria-label={`Version ${at + 1} of ${all.length}`}>
        {at + 1}/{all.length}
      </span>
      <IconButton
        icon="right"
        label="Next version"
        disabled={disabled || at === all.length - 1}
        onClick={() => step(1)}
      />
    </span>
  );
}

const ENDS: Record<string, string> = {
  length: "cut at the token limit",
  stopped: "stopped",
  interrupted: "interrupted",
};

function Numbers({ message }: { message: Node }) {
  const { stats, finish } = message;
  const parts: string[] = [];
  if (stats) {
    parts.push(`${whole(stats.completion)} tokens`);
    if (stats.rate > 0) parts.push(`${rate(stats.rate)} tok/s`);
    if (stats.first > 0) parts.push(`first after ${milliseconds(stats.first)}`);
    if (stats.cached > 0) parts.push(`${whole(stats.cached)} of ${whole(stats.prompt)} cached`);
  }
  const end = ENDS[finish ?? ""];
  if (end) parts.push(end);
  return <span class="numbers">{parts.join(" · ")}</span>;
}
