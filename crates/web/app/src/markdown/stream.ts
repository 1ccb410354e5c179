/** A message that grows: only its last block is rendered again. */

import { enhance } from "./enhance";
import { clean, pieces } from "./render";

/** Definitions of links hold for blocks that are rendered already. */
const DEFINITION = /^ {0,3}\[[^\]]+\]:/m;

export class Stream {
  /** What of the text cannot change any more, and is rendered. */
  private settled = "";
  private last: HTMLElement | null = null;
  private lastHtml = "";
  private text = "";
  private finished = false;

  constructor(private readonly root: HTMLElement) {}

  update(text: string, finished: boolean): void {
    if (text === this.text && finished === this.finished) return;
    const grows = text.startsWith(this.settled) && !(finished && DEFINITION.test(text));
    if (!grows) this.reset();
    this.text = text;
    this.finished = finished;
    this.render(finished);
  }

  private reset(): void {
    this.root.replaceChildren();
    this.settled = "";
    this.last = null;
  }

  private render(finished: boolean): void {
    const rest = this.text.slice(this.settled.length);
    const blocks = pieces(rest);
    const open = finished ? null : (blocks.pop() ?? null);
    const end = blocks.at(-1)?.end ?? 0;
    for (const block of blocks) enhance(this.place(block.html));
    if (blocks.length > 0) this.settled += firstLines(rest, end);
    if (open) {
      this.last = this.fill(open.html);
      this.lastHtml = open.html;
    } else {
      this.last?.remove();
      this.last = null;
    }
  }

  /** A block that stays. */
  private place(html: string): HTMLElement {
    const element = this.fill(html);
    this.last = null;
    return element;
  }

  /** The last block, which stays as it is if nothing changes, so that a selection in it stays too. */
  private fill(html: string): HTMLElement {
    if (this.last && this.lastHtml === html) return this.last;
    const element = this.last ?? this.append();
    element.innerHTML = clean(html);
    return element;
  }

  private append(): HTMLElement {
    const element = document.createElement("div");
    this.root.append(element);
    return element;
  }
}

function firstLines(text: string, count: number): string {
  let at = 0;
  for (let line = 0; line < count; line += 1) {
    const next = text.indexOf("\n", at);
    if (next < 0) return text;
    at = next + 1;
  }
  return text.slice(0, at);
}
