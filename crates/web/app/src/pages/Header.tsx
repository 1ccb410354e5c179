import type { ComponentChildren } from "preact";
import { IconButton } from "../components/Icon";
import { newChat, sidebarOpen } from "../components/Sidebar";

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
