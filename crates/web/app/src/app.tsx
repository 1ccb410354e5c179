import { keyWanted } from "./api";
import { KeyDialog } from "./components/KeyDialog";
import { Search, searching } from "./components/Search";
import { newChat, Sidebar, sidebarOpen } from "./components/Sidebar";
import { stop } from "./generate";
import { Chat } from "./pages/Chat";
import { Machine } from "./pages/Machine";
import { Models } from "./pages/Models";
import { Settings } from "./pages/Settings";
import { current, notice, route } from "./store";

export function App() {
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <Sidebar />
      <main id="main" tabIndex={-1}>
        <Page />
      </main>
      {searching.value && <Search />}
      {keyWanted.value && <KeyDialog />}
      <div class={notice.value ? "notice shown" : "notice"} role="status" aria-live="polite">
        {notice.value}
      </div>
    </>
  );
}

/** The hash is the route, so the link must not change it. */
function skip(event: MouseEvent): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Page() {
  switch (route.value.page) {
    case "models":
      return <Models />;
    case "machine":
      return <Machine />;
    case "settings":
      return <Settings />;
    case "chat":
      return <Chat />;
  }
}

function isWriting(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}

export function onKeyDown(event: KeyboardEvent): void {
  const command = event.ctrlKey || event.metaKey;
  if (command && event.key.toLowerCase() === "k") {
    event.preventDefault();
    searching.value = true;
  } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    newChat();
  } else if (event.key === "Escape" && !searching.value && !keyWanted.value) {
    if (sidebarOpen.value) sidebarOpen.value = false;
    else stop(current.value?.id ?? null);
  } else if (event.key === "/" && !isWriting(event.target)) {
    const composer = document.getElementById("composer");
    if (!composer) return;
    event.preventDefault();
    composer.focus();
  }
}
