import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import * as db from "../db";
import { conversations, go } from "../store";
import type { Conversation } from "../types";
import { Dialog } from "./Dialog";

export const searching = signal(false);

const MOST = 30;

interface Hit {
  conversation: Conversation;
  snippet: string;
}

export function Search() {
  const [text, setText] = useState("");
  const [hits, setHits] = useState<Hit[]>([]);
  const [at, setAt] = useState(0);
  const close = () => (searching.value = false);

  useEffect(() => {
    setAt(0);
    if (!text.trim()) {
      setHits(conversations.value.slice(0, MOST).map((conversation) => ({ conversation, snippet: "" })));
      return undefined;
    }
    let stale = false;
    const timer = setTimeout(() => {
      void db.search(text.trim(), MOST).then((found) => {
        if (!stale) setHits(found);
      });
    }, 80);
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [text]);

  const open = (hit: Hit | undefined) => {
    if (!hit) return;
    close();
    go("chat", hit.conversation.id);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((old) => Math.max(0, Math.min(hits.length - 1, old + step)));
    }
    if (event.key === "Enter") open(hits[at]);
  };
  return (
    <Dialog label="Search conversations" close={close}>
      <input
        class="search"
        type="text"
        list={undefined}
        role="combobox"
        aria-label="Search conversations"
        aria-expanded="true"
        aria-controls="hits"
        aria-activedescendant={hits[at] ? `hit-${at}` : undefined}
        placeholder="Search conversations"
        autoFocus
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <ul id="hits" class="hits" role="listbox" aria-label="Conversations">
        {hits.map((hit, index) => (
          <li
            key={hit.conversation.id}
            id={`hit-${index}`}
            role="option"
            aria-selected={index === at}
            onClick={() => open(hit)}
            onPointerMove={() => setAt(index)}
          >
            <strong>{hit.conversation.title}</strong>
            {hit.snippet && <span>{hit.snippet}</span>}
          </li>
        ))}
      </ul>
      {hits.length === 0 && (
        <p class="quiet" role="status">
          Nothing found
        </p>
      )}
    </Dialog>
  );
}
