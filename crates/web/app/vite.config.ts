import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

/** Writes the service worker, with the names of all files of this build. */
function worker(): Plugin {
  return {
    name: "worker",
    apply: "build",
    generateBundle(_, bundle) {
      const files = Object.keys(bundle).filter((name) => name.startsWith("assets/")).sort();
      const names = JSON.stringify(["./", "manifest.webmanifest", "icon.svg", "theme.js", ...files]);
      const version = createHash("sha256").update(names).digest("hex").slice(0, 12);
      const source = readFileSync(new URL("src/worker.js", import.meta.url), "utf8");
      this.emitFile({
        type: "asset",
        fileName: "sw.js",
        source: source.replace("[/* files */]", names).replace("/* version */", version),
      });
    },
  };
}

const server = process.env["TAPER_URL"] ?? "http://127.0.0.1:8000";

/** The server refuses requests of other origins, and that of Vite is one. */
const api = {
  target: server,
  changeOrigin: true,
  configure: (proxy: { on(event: "proxyReq", run: (request: { removeHeader(name: string): void }) => void): void }) =>
    proxy.on("proxyReq", (request) => request.removeHeader("origin")),
};

export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [worker()],
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  server: { proxy: { "/v1": api, "/metrics": api, "/version": api, "/health": api, "/tokenize": api } },
});
