import type { ComponentChildren } from "preact";
import { IconButton } from "../components/Icon";
import { newChat, sidebarOpen } from "../components/Sidebar";

/** A page that scrolls under its header. */
export function Sheet({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="page">
      <Header title={title} />
      <div class="content" tabIndex={0} role="region" aria-label={title}>
        {children}
      </div>
    </div>
  );
}

export function Header({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <header class="top">
      <IconButton icon="menu" label="Open the list" class="narrow" onClick={() => (sidebarOpen.value = true)} />
      <h1>{title}</h1>
      {children}
      <IconButton icon="plus" label="New chat" class="narrow" onClick={newChat} />
    </header>
  );
}
