/** Formulas in Markdown: `$x$`, `$$x$$`, `\(x\)`, `\[x\]`. What is between becomes a text in an element of its own. */

import type { MarkdownIt } from "markdown-it";

type InlineRule = Parameters<MarkdownIt["inline"]["ruler"]["before"]>[2];
type BlockRule = Parameters<MarkdownIt["block"]["ruler"]["before"]>[2];

/** Where a formula that begins at `from` ends, for an ending that no backslash escapes; -1 if nowhere. */
function closing(text: string, from: number, ending: string): number {
  for (let at = text.indexOf(ending, from); at >= 0; at = text.indexOf(ending, at + 1)) {
    let slashes = 0;
    while (text[at - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return at;
  }
  return -1;
}

const inline: InlineRule = (state, silent) => {
  const { src, pos } = state;
  let open = "";
  let close = "";
  if (src.startsWith("\\(", pos)) [open, close] = ["\\(", "\\)"];
  else if (src.startsWith("\\[", pos)) [open, close] = ["\\[", "\\]"];
  else if (src.startsWith("$$", pos)) [open, close] = ["$$", "$$"];
  else if (src[pos] === "$") [open, close] = ["$", "$"];
  else return false;
  const from = pos + open.length;
  const end = closing(src, from, close);
  const tex = end < 0 ? "" : src.slice(from, end);
  if (!tex.trim()) return false;
  // Prices are no formulas: as in Pandoc, no blank inside and no digit behind.
  const price = open === "$" && (/^\s|\s$/.test(tex) || /\d/.test(src[end + 1] ?? "") || tex.includes("\n\n"));
  if (price) return false;
  if (!silent) {
    const token = state.push(open === "$" || open === "\\(" ? "math_inline" : "math_block", "", 0);
    token.content = tex.trim();
  }
  state.pos = end + close.length;
  return true;
};

const block: BlockRule = (state, start, end, silent) => {
  const line = (n: number): string =>
    state.src.slice((state.bMarks[n] ?? 0) + (state.tShift[n] ?? 0), state.eMarks[n] ?? 0);
  const first = line(start);
  const open = first.startsWith("$$") ? "$$" : first.startsWith("\\[") ? "\\[" : "";
  if (!open) return false;
  const close = open === "$$" ? "$$" : "\\]";
  const tex: string[] = [];
  let last = start;
  let text = first.slice(2);
  for (;;) {
    const trimmed = text.trimEnd();
    if (trimmed.endsWith(close)) {
      tex.push(trimmed.slice(0, -2));
      break;
    }
    if (text.includes(close)) return false;
    tex.push(text);
    last += 1;
    if (last >= end) return false;
    text = line(last);
  }
  if (silent) return true;
  const token = state.push("math_block", "", 0);
  token.block = true;
  token.content = tex.join("\n").trim();
  token.map = [start, last + 1];
  state.line = last + 1;
  return true;
};

export function math(md: MarkdownIt): void {
  md.inline.ruler.before("escape", "math", inline);
  md.block.ruler.before("fence", "math", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
  const rule = (element: string) => (tokens: { content: string }[], at: number) =>
    `<${element} class="math">${md.utils.escapeHtml(tokens[at]?.content ?? "")}</${element}>`;
  md.renderer.rules["math_inline"] = rule("span");
  md.renderer.rules["math_block"] = rule("div");
}
