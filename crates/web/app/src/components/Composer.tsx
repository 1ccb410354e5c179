import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { readFile } from "../files";
import { isBusy, live, send, stop } from "../generate";
import { sees } from "../request";
import { settings } from "../settings";
import { current, model, say, shown, text as words } from "../store";
import type { Attachment } from "../types";
import { short, rate, whole } from "../format";
import { Icon, IconButton } from "./Icon";

const draft = signal("");
const files = signal<Attachment[]>([]);

/** Takes files that were dropped, pasted or chosen. */
export async function attach(list: Iterable<File>): Promise<void> {
  for (const file of list) {
    try {
      const read = await readFile(file, sees(model.value));
      files.value = [...files.value, read];
    } catch (error) {
      say(words(error));
    }
  }
}

export function Composer() {
  const area = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const id = current.value?.id ?? null;
  const busy = isBusy(id);
  const empty = draft.value.trim() === "" && files.value.length === 0;

  useEffect(() => area.current?.focus({ preventScroll: true }), [id]);
  useEffect(() => {
    // The height of what is written, up to the limit of the style sheet.
    const element = area.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [draft.value]);

  const submit = () => {
    if (busy || empty) return;
    const [content, attachments] = [draft.value.trim(), files.value];
    draft.value = "";
    files.value = [];
    void send(content, attachments).catch((error: unknown) => say(words(error)));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    // An input method's Enter chooses a word.
    if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
    if (settings.value.enter === "newline" && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    submit();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {files.value.length > 0 && <Files />}
      <textarea
        id="composer"
        ref={area}
        rows={1}
        aria-label="Message"
        placeholder={`Message ${model.value?.id ?? ""}`}
        value={draft.value}
        enterkeyhint={settings.value.enter === "send" ? "send" : "enter"}
        onInput={(event) => (draft.value = event.currentTarget.value)}
        onKeyDown={onKeyDown}
        onPaste={(event) => {
          const pasted = event.clipboardData?.files;
          if (!pasted?.length) return;
          event.preventDefault();
          void attach(pasted);
        }}
      />
      <div class="composer-row">
        <input
          ref={picker}
          hidden
          type="file"
          multiple
          tabIndex={-1}
          aria-label="Files"
          onChange={(event) => {
            void attach([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        <IconButton icon="clip" label="Add files" onClick={() => picker.current?.click()} />
        <Meter />
        {busy ? (
          <button type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" onClick={() => stop(id)}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="round" aria-label="Send" title="Send" disabled={empty}>
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}

function Files() {
  return (
    <ul class="files">
      {files.value.map((file, at) => (
        <li key={at} class="file">
          {file.kind === "image" ? <img src={file.data} alt="" /> : <Icon name="file" />}
          <span>{file.name}</span>
          <IconButton
            icon="close"
            label={`Remove ${file.name}`}
            onClick={() => (files.value = files.value.filter((_, other) => other !== at))}
          />
        </li>
      ))}
    </ul>
  );
}

/** How full the model's context is, and how fast it writes. */
function Meter() {
  const last = shown.value.at(-1);
  const writing = last ? live.value.get(last.id) : undefined;
  const stats = writing?.stats ?? [...shown.value].reverse().find((message) => message.stats)?.stats;
  const most = model.value?.max_model_len ?? 0;
  if (!stats || most === 0) return <span class="meter" />;
  const used = stats.prompt + stats.completion;
  const part = Math.min(1, used / most);
  const ring = 2 * Math.PI * 7;
  const title = `${whole(used)} of ${whole(most)} tokens of context`;
  return (
    <span class="meter" title={title}>
      <svg viewBox="0 0 20 20" role="img" aria-label={title}>
        <circle cx="10" cy="10" r="7" class="ring" />
        <circle
          cx="10"
          cy="10"
          r="7"
          class={part > 0.85 ? "ring-part full" : "ring-part"}
          stroke-dasharray={`${(part * ring).toFixed(2)} ${ring.toFixed(2)}`}
        />
      </svg>
      <span>
        {short(used)} / {short(most)}
        {writing && stats.rate > 0 ? ` · ${rate(stats.rate)} tok/s` : ""}
      </span>
    </span>
  );
}
