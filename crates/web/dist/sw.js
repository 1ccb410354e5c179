// The shell of the app without a network. The API is never touched.
const FILES = ["./","manifest.webmanifest","icon.svg","theme.js","assets/highlight-DpHVgGFm.js","assets/index-Cn5dQkgm.css","assets/index-Dsu-PmaF.js","assets/katex-BhzyR5At.js"];
const CACHE = "taper-b4e462561fda";

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)).then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  const old = async () => {
    const names = await caches.keys();
    const stale = names.filter((name) => name.startsWith("taper-") && name !== CACHE);
    await Promise.all(stale.map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(old());
});

const ROOT = new URL("./", self.registration.scope).href;
const OWN = new Set(FILES.map((file) => new URL(file, ROOT).href));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = request.url.split(/[?#]/)[0];
  if (request.method !== "GET" || !OWN.has(url)) return;
  event.respondWith(url.includes("/assets/") ? cached(request, url) : fresh(request, url));
});

/** Names of assets change with their contents. */
async function cached(request, url) {
  return (await caches.match(url)) ?? fetch(request);
}

/** The server's own answer, so that an update shows at once. */
async function fresh(request, url) {
  try {
    return await fetch(request);
  } catch (error) {
    const kept = await caches.match(url);
    if (kept) return kept;
    throw error;
  }
}
