import { useLayoutEffect, useRef } from "preact/hooks";
import { copyText } from "../format";
import { Stream } from "../markdown/stream";

/** Text of a model. The DOM below is the stream's alone. */
export function Markdown({ text, finished }: { text: string; finished: boolean }) {
  const root = useRef<HTMLDivElement>(null);
  const stream = useRef<Stream>(null);
  useLayoutEffect(() => {
    if (!root.current) return;
    stream.current ??= new Stream(root.current);
    stream.current.update(text, finished);
  }, [text, finished]);
  return <div class="prose" ref={root} onClick={copyCode} />;
}

async function copyCode(event: MouseEvent): Promise<void> {
  const button = (event.target as Element).closest<HTMLButtonElement>("button.copy");
  const code = button?.closest(".code")?.querySelector("code");
  if (!button || !code) return;
  await copyText(code.textContent ?? "");
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
