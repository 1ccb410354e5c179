// The web app in Debian's Chromium, against a running server: does it do what it should?
//
//   node check.mjs --base-url http://127.0.0.1:8000/v1 --api-key KEY [--only NAME] [--screenshots DIR] [--several]
import { parseArgs } from "node:util";
import { launch } from "./browser.mjs";
import { start } from "./proxy.mjs";
import * as chat from "./chat.mjs";
import * as pages from "./pages.mjs";
import * as safety from "./safety.mjs";
import * as several from "./several.mjs";
import { screenshots } from "./screenshots.mjs";

const { values: args } = parseArgs({
  options: {
    "base-url": { type: "string", default: "http://127.0.0.1:8000/v1" },
    "api-key": { type: "string", default: "" },
    only: { type: "string", multiple: true },
    screenshots: { type: "string" },
    // The server is that of tests/several.py.
    several: { type: "boolean" },
  },
});

const browser = await launch();
const target = args["base-url"].replace(/\/v1\/?$/, "/");
const cases = args.several ? { ...several } : { ...chat, ...pages, ...safety };
if (args.screenshots) cases.screenshots = (tools) => screenshots(tools, args.screenshots);
let failed = 0;
let passed = 0;
for (const [name, run] of Object.entries(cases)) {
  if (args.only && !args.only.includes(name)) continue;
  const proxy = await start(target);
  const tools = { browser, proxy, key: args["api-key"], target };
  try {
    await run(tools);
    passed += 1;
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
    for (const page of browser.contexts().flatMap((context) => context.pages())) {
      console.log(await page.locator("body").ariaSnapshot().catch(() => ""));
    }
  }
  await Promise.all(browser.contexts().map((context) => context.close()));
  proxy.close();
}
await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;
