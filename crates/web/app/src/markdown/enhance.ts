/** Colours of code and formulas: loaded when the first one is shown. */

import { clean, cleanMath } from "./render";

/** Longer code stays plain. */
const MOST_CODE = 60_000;
const MOST_TEX = 5_000;

export function enhance(root: HTMLElement): void {
  for (const code of root.querySelectorAll<HTMLElement>("code[data-language]")) {
    const language = code.dataset["language"] ?? "";
    const text = code.textContent ?? "";
    if (language && text.length <= MOST_CODE) paint(code, text, language).catch(missing);
  }
  for (const math of root.querySelectorAll<HTMLElement>(".math")) {
    const tex = math.textContent ?? "";
    if (tex.length <= MOST_TEX) typeset(math, tex).catch(missing);
  }
}

/** The server is gone, or it is another version by now: text stays plain until the page is loaded again. */
function missing(error: unknown): void {
  console.warn("Colours and formulas need the page to be loaded again:", error);
}

async function paint(element: HTMLElement, text: string, language: string): Promise<void> {
  const { colours } = await import("./highlight");
  const html = colours(text, language);
  if (html !== null) element.innerHTML = clean(html);
}

async function typeset(element: HTMLElement, tex: string): Promise<void> {
  const { default: katex } = await import("katex");
  try {
    const html = katex.renderToString(tex, {
      output: "mathml",
      displayMode: element.tagName === "DIV",
      throwOnError: true,
      trust: false,
      strict: false,
      maxExpand: 200,
      maxSize: 20,
    });
    // The page's policy forbids inline styles, and reports them even where nothing shows.
    element.innerHTML = cleanMath(html.replace(/ style="[^"]*"/g, ""));
    element.classList.add("done");
  } catch {
    // What is no formula stays as it was written.
    element.classList.add("plain");
  }
}
