/** Markdown to markup that cannot do anything: no HTML of the model's, no pictures of other hosts, no scripts. */

import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import { math } from "./math";

const md = new MarkdownIt({ html: false, linkify: true, breaks: false, typographer: false }).use(math);

const LINKS = /^(https?:|mailto:)/i;
md.validateLink = (url) => LINKS.test(url.trim());

/** A picture would tell another host that this was read, and can carry what was said: it becomes a link. */
md.renderer.rules.image = (tokens, at, _options, env) => {
  const token = tokens[at];
  const href = md.utils.escapeHtml(String(token?.attrGet("src") ?? ""));
  const text = token ? md.renderer.renderInlineAsText(token.children ?? [], md.options, env) : "";
  return `<a href="${href}">${md.utils.escapeHtml(text || "image")}</a>`;
};

md.renderer.rules.fence = (tokens, at) => {
  const token = tokens[at];
  const name = token?.info.trim().split(/\s+/, 1)[0] ?? "";
  return code(token?.content ?? "", name);
};
md.renderer.rules.code_block = (tokens, at) => code(tokens[at]?.content ?? "", "");

function code(text: string, language: string): string {
  const name = md.utils.escapeHtml(language);
  return (
    `<div class="code"><div class="code-head"><span>${name || "text"}</span>` +
    `<button type="button" class="copy">Copy</button></div>` +
    `<pre tabindex="0"><code data-language="${name}">${md.utils.escapeHtml(text)}</code></pre></div>`
  );
}

md.renderer.rules.table_open = () => `<div class="table" tabindex="0"><table>`;
md.renderer.rules.table_close = () => `</table></div>`;

/** Columns' alignments come as inline styles, which the page's policy forbids. */
for (const name of ["th_open", "td_open"] as const) {
  md.renderer.rules[name] = (tokens, at) => {
    const aligned = /text-align:(\w+)/.exec(String(tokens[at]?.attrGet("style") ?? ""))?.[1];
    const tag = name.slice(0, 2);
    return aligned ? `<${tag} class="${aligned}">` : `<${tag}>`;
  };
}

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "button", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr",
    "li", "ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["class", "href", "title", "start", "tabindex", "type", "data-language", "target", "rel"],
  ALLOW_DATA_ATTR: false,
  // Schemes of links, or values that have none.
  ALLOWED_URI_REGEXP: /^(?:(?:https?|mailto):|[^a-z]|[a-z+.-]+(?:[^a-z+.\-:]|$))/i,
  RETURN_TRUSTED_TYPE: true,
} as const;

/** Markup as `innerHTML` takes it where markup must be trusted. */
export function clean(html: string): string {
  return DOMPurify.sanitize(html, { ...ALLOWED, ALLOWED_TAGS: [...ALLOWED.ALLOWED_TAGS], ALLOWED_ATTR: [...ALLOWED.ALLOWED_ATTR] }) as unknown as string;
}

/** MathML of a formula. */
export function cleanMath(html: string): string {
  return DOMPurify.sanitize(html, { USE_PROFILES: { mathMl: true }, RETURN_TRUSTED_TYPE: true }) as unknown as string;
}

export interface Piece {
  /** Markup, not yet cleaned. */
  html: string;
  /** The line behind its last one. */
  end: number;
}

/** The outermost blocks of a text, in order. */
export function pieces(text: string): Piece[] {
  const env = {};
  const tokens = md.parse(text, env);
  const made: Piece[] = [];
  for (let from = 0, at = 0, depth = 0; at < tokens.length; at += 1) {
    depth += tokens[at]?.nesting ?? 0;
    if (depth > 0) continue;
    const own = tokens.slice(from, at + 1);
    made.push({ html: md.renderer.render(own, md.options, env), end: own[0]?.map?.[1] ?? 0 });
    from = at + 1;
  }
  return made;
}
