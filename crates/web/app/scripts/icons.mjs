// Draws icon.svg as the PNGs of the manifest, with a Chromium: CHROMIUM names it.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const chromium = process.env.CHROMIUM ?? "chromium";
const folder = new URL("../public/", import.meta.url).pathname;
const icon = readFileSync(join(folder, "icon.svg"), "utf8");
// Launchers cut the corners of maskable icons: no corners of our own, and the picture smaller.
const maskable = icon
  .replace('rx="116"', "")
  .replace(/(<path[\s\S]*)<\/svg>/, '<g transform="translate(64 64) scale(.75)">$1</g></svg>');

const scratch = mkdtempSync(join(tmpdir(), "icons-"));
for (const [name, size, svg] of [
  ["icon-192.png", 192, icon],
  ["icon-512.png", 512, icon],
  ["icon-maskable-512.png", 512, maskable],
]) {
  const page = join(scratch, "page.html");
  const body = svg.replace("<svg ", `<svg width="${size}" height="${size}" style="display:block" `);
  writeFileSync(page, `<!doctype html><style>body{margin:0;background:transparent}</style>${body}`);
  execFileSync(chromium, [
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
    "--default-background-color=00000000", `--window-size=${size},${size}`,
    `--screenshot=${join(folder, name)}`, page,
  ], { stdio: "ignore" });
}
rmSync(scratch, { recursive: true });
