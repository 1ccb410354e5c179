import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { age } from "../format";
import { isBusy, stop } from "../generate";
import { conversations, deleteConversation, go, route, updateConversation, type Page } from "../store";
import type { Conversation } from "../types";
import { Icon, IconButton, Logo, type IconName } from "./Icon";
import { searching } from "./Search";

/** Only matters where the page is narrow. */
export const sidebarOpen = signal(false);

export function newChat(): void {
  go("chat");
  sidebarOpen.value = false;
  document.getElementById("composer")?.focus();
}

export function Sidebar() {
  const groups = new Map<string, Conversation[]>();
  for (const conversation of conversations.value) {
    const name = age(conversation.updated);
    groups.set(name, [...(groups.get(name) ?? []), conversation]);
  }
  return (
    <>
      {sidebarOpen.value && <div class="veil" onClick={() => (sidebarOpen.value = false)} />}
      <aside class={sidebarOpen.value ? "sidebar open" : "sidebar"} aria-label="Conversations">
        <div class="brand">
          <Logo />
          <span>Taper</span>
          <IconButton
            icon="close"
            label="Close the list"
            class="narrow"
            onClick={() => (sidebarOpen.value = false)}
          />
        </div>
        <button type="button" class="side" onClick={newChat}>
          <Icon name="plus" /> New chat
        </button>
        <button type="button" class="side" onClick={() => (searching.value = true)}>
          <Icon name="search" /> Search <kbd>Ctrl K</kbd>
        </button>
        <nav class="list" aria-label="Chats" tabIndex={-1}>
          {[...groups].map(([name, list]) => (
            <section key={name}>
              <h2>{name}</h2>
              <ul>
                {list.map((conversation) => (
                  <Entry key={conversation.id} conversation={conversation} />
                ))}
              </ul>
            </section>
          ))}
        </nav>
        <nav class="pages" aria-label="Pages">
          <PageLink page="models" icon="cube" name="Models" />
          <PageLink page="machine" icon="pulse" name="Machine" />
          <PageLink page="settings" icon="gear" name="Settings" />
        </nav>
      </aside>
    </>
  );
}

function PageLink({ page, icon, name }: { page: Page; icon: IconName; name: string }) {
  const here = route.value.page === page;
  return (
    <a
      class="side"
      href={`#/${page}`}
      aria-current={here ? "page" : undefined}
      onClick={() => (sidebarOpen.value = false)}
    >
      <Icon name={icon} /> {name}
    </a>
  );
}

function Entry({ conversation }: { conversation: Conversation }) {
  const [naming, setNaming] = useState(false);
  const here = route.value.id === conversation.id;
  const busy = isBusy(conversation.id);
  if (naming) return <Naming conversation={conversation} close={() => setNaming(false)} />;
  return (
    <li class={here ? "entry here" : "entry"}>
      <a
        href={`#/c/${conversation.id}`}
        aria-current={here ? "page" : undefined}
        onClick={() => (sidebarOpen.value = false)}
        onDblClick={() => setNaming(true)}
      >
        {busy && <span class="dot" />}
        {conversation.title}
      </a>
      <span class="entry-actions">
        <IconButton icon="edit" label={`Rename ${conversation.title}`} onClick={() => setNaming(true)} />
        <Delete conversation={conversation} />
      </span>
    </li>
  );
}

/** Asks by its second press. */
function Delete({ conversation }: { conversation: Conversation }) {
  const [sure, setSure] = useState(false);
  useEffect(() => {
    if (!sure) return undefined;
    const timer = setTimeout(() => setSure(false), 3000);
    return () => clearTimeout(timer);
  }, [sure]);
  if (!sure) {
    return <IconButton icon="trash" label={`Delete ${conversation.title}`} onClick={() => setSure(true)} />;
  }
  return (
    <button
      type="button"
      class="danger small"
      onClick={() => {
        stop(conversation.id);
        void deleteConversation(conversation.id);
      }}
    >
      Delete?
    </button>
  );
}

function Naming({ conversation, close }: { conversation: Conversation; close: () => void }) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.select(), []);
  const done = (title: string) => {
    if (title.trim()) void updateConversation(conversation.id, { title: title.trim() });
    close();
  };
  return (
    <li class="entry">
      <input
        ref={input}
        aria-label="Title"
        value={conversation.title}
        onBlur={(event) => done(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") done(event.currentTarget.value);
          if (event.key !== "Escape") return;
          event.stopPropagation();
          close();
        }}
      />
    </li>
  );
}
