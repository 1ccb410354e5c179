import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { attach, Composer } from "../components/Composer";
import { Icon, IconButton, Logo } from "../components/Icon";
import { Message } from "../components/Message";
import { fileName, markdown, save } from "../exchange";
import { isBusy } from "../generate";
import { change, choosePreset, settings } from "../settings";
import { current, exported, model, models, serverDown, shown, updateConversation } from "../store";
import { Header } from "./Header";

export function Chat() {
  const [dragging, setDragging] = useState(false);
  const [panel, setPanel] = useState(false);
  const list = shown.value;
  return (
    <div
      class="chat"
      onDragOver={(event) => {
        event.preventDefault();
        setDragging(true);
      }}
      onDragLeave={(event) => {
        if (event.currentTarget === event.target) setDragging(false);
      }}
      onDrop={(event) => {
        event.preventDefault();
        setDragging(false);
        void attach(event.dataTransfer?.files ?? []);
      }}
    >
      <Header title={current.value?.title ?? "New chat"}>
        <ModelPicker />
        <IconButton icon="sliders" label="System prompt" pressed={panel} onClick={() => setPanel(!panel)} />
        <Export />
      </Header>
      {panel && <SystemPanel />}
      {list.length === 0 ? <Welcome /> : <Messages key={current.value?.id} />}
      <div class="bottom">
        <Composer />
      </div>
      {dragging && <div class="drop">Drop files to add them</div>}
    </div>
  );
}

function Welcome() {
  return (
    <div class="welcome">
      <Logo />
      <h1>{model.value?.id ?? "Taper"}</h1>
      {serverDown.value ? (
        <p class="error" role="alert">
          {serverDown.value}
        </p>
      ) : (
        <p class="quiet">Conversations stay in this browser.</p>
      )}
    </div>
  );
}

/** How near to its end a list counts as being read there, in pixels. */
const NEAR = 80;

function Messages() {
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [away, setAway] = useState(false);
  const list = shown.value;
  const busy = isBusy(current.value?.id ?? null);
  const toEnd = () => {
    const element = box.current;
    if (element) element.scrollTop = element.scrollHeight;
  };
  useLayoutEffect(() => {
    if (follows.current) toEnd();
  }, [list]);
  useEffect(() => {
    // Words, formulas and colours change heights.
    const inner = box.current?.firstElementChild;
    if (!inner) return undefined;
    const observer = new ResizeObserver(() => {
      if (follows.current) toEnd();
    });
    observer.observe(inner);
    return () => observer.disconnect();
  }, []);
  const onScroll = () => {
    const element = box.current;
    if (!element) return;
    follows.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR;
    setAway(!follows.current);
  };
  return (
    <div class="scroll" ref={box} onScroll={onScroll} tabIndex={0} role="region" aria-label="Conversation">
      <div class="messages" role="log" aria-live="polite" aria-busy={busy}>
        {list.map((message, at) => (
          <Message key={message.id} message={message} last={at === list.length - 1} />
        ))}
      </div>
      {away && (
        <button
          type="button"
          class="to-end round"
          aria-label="To the end"
          onClick={() => {
            follows.current = true;
            toEnd();
          }}
        >
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}

function ModelPicker() {
  const all = models.value;
  if (all.length < 2) return null;
  return (
    <select
      class="picker"
      aria-label="Model"
      value={model.value?.id}
      onChange={(event) => change({ model: event.currentTarget.value })}
    >
      {all.map((card) => (
        <option key={card.id} value={card.id}>
          {card.id}
          {card.status && card.status.value !== "loaded" ? ` (${card.status.value})` : ""}
        </option>
      ))}
    </select>
  );
}

function SystemPanel() {
  const conversation = current.value;
  const { system, presets } = settings.value;
  const text = conversation?.system ?? system;
  const write = (value: string) => {
    if (conversation) void updateConversation(conversation.id, { system: value });
    else change({ system: value });
  };
  return (
    <section class="panel" aria-label="System prompt">
      <label for="system">System prompt {conversation ? "of this chat" : "of new chats"}</label>
      <textarea id="system" rows={3} value={text} onInput={(event) => write(event.currentTarget.value)} />
      {presets.length > 0 && (
        <label>
          Preset{" "}
          <select
            value=""
            onChange={(event) => {
              const preset = presets.find((other) => other.name === event.currentTarget.value);
              if (!preset) return;
              write(preset.system);
              choosePreset(preset.sampling);
            }}
          >
            <option value="">choose…</option>
            {presets.map((preset) => (
              <option key={preset.name}>{preset.name}</option>
            ))}
          </select>
        </label>
      )}
    </section>
  );
}

function Export() {
  const conversation = current.value;
  if (!conversation) return null;
  const asMarkdown = () =>
    save(fileName(conversation.title, "md"), "text/markdown", markdown(conversation, shown.value));
  const asJson = async () => {
    const file = await exported([conversation.id]);
    save(fileName(conversation.title, "json"), "application/json", JSON.stringify(file, null, 2));
  };
  return (
    <details class="menu">
      <summary class="icon-button" aria-label="Export" title="Export">
        <Icon name="more" />
      </summary>
      <div class="menu-list">
        <button type="button" onClick={asMarkdown}>
          Export as Markdown
        </button>
        <button type="button" onClick={() => void asJson()}>
          Export as JSON
        </button>
      </div>
    </details>
  );
}
