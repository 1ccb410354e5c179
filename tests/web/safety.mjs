// What a model, a file or a stranger says is text, and nothing of it runs, loads or leaves.
import assert from "node:assert/strict";
import { Session } from "./browser.mjs";
import { foul, HOSTILE } from "./hostile.mjs";
import { says } from "./proxy.mjs";

const open = ({ browser, proxy, key }, options) => Session.open(browser, proxy, key, options);

async function clean(s) {
  await s.page.waitForTimeout(100);
  assert.deepEqual(await s.page.evaluate(foul), []);
  await s.check();
}

export async function hostile_answers(tools) {
  const s = await open(tools);
  for (const text of HOSTILE) {
    tools.proxy.script = says(text);
    await s.send(text);
    await s.answer().locator(".actions").waitFor();
    await s.settled();
    assert.deepEqual(await s.page.evaluate(foul), [], text);
  }
  for (const button of await s.page.locator("article a").all()) await button.hover({ force: true }).catch(() => undefined);
  await clean(s);
  // All of it once more, from what was kept.
  await s.page.reload();
  await s.page.locator("article").last().waitFor();
  await clean(s);
}

export async function hostile_streams(tools) {
  const all = HOSTILE.join("\n\n");
  tools.proxy.script = async function* () {
    for (const part of all.match(/.{1,7}/gsu)) yield { content: part };
  };
  const s = await open(tools);
  await s.ask("Go");
  await clean(s);
}

export async function hostile_names(tools) {
  const s = await open(tools);
  const definitions = HOSTILE.slice(0, 3).map((name) => ({ name, description: name }));
  await s.page.evaluate((list) => {
    localStorage.setItem("taper.settings", JSON.stringify({ tools: JSON.stringify(list), presets: [{ name: list[0].name, system: "", sampling: {} }] }));
  }, definitions);
  tools.proxy.models = (list) => ({ ...list, data: HOSTILE.slice(0, 8).map((id) => ({ ...list.data[0], id, root: id, parent: id })) });
  await s.page.reload();
  for (const text of HOSTILE) {
    tools.proxy.script = async function* () {
      yield { reasoning_content: text };
      yield { tool_calls: [{ index: 0, id: text, function: { name: text, arguments: text } }] };
    };
    await s.page.getByLabel("Files", { exact: true }).setInputFiles([{ name: text.replaceAll("/", "_"), mimeType: "text/plain", buffer: Buffer.from(text) }]);
    await s.page.locator(".composer .file").waitFor();
    await s.send(text);
    await s.answer().locator(".actions").waitFor();
    await s.settled();
    await s.go("#/");
    await s.page.getByRole("heading", { name: "New chat" }).waitFor();
  }
  assert.equal(await s.page.locator(".entry").count(), HOSTILE.length);
  for (const page of ["#/models", "#/settings", "#/machine"]) {
    await s.go(page);
    await clean(s);
  }
  await s.page.keyboard.press("Control+k");
  await s.page.getByRole("combobox").fill("pwned");
  await s.page.getByRole("option").first().waitFor();
  await clean(s);
}

export async function hostile_files(tools) {
  const s = await open(tools);
  await s.go("#/settings");
  const message = (text, id, parent) => ({
    id,
    conversation: text,
    parent,
    role: id === "a" ? "user" : "assistant",
    content: text,
    reasoning: text,
    model: text,
    finish: text,
    calls: [{ id: text, name: text, arguments: text }],
    attachments: [
      { kind: "image", name: text, data: "https://evil.example/x.png" },
      { kind: "image", name: text, data: "data:image/svg+xml,<svg onload=alert(1)>" },
      { kind: "text", name: text, data: text },
    ],
    stats: text,
    created: text,
    innerHTML: text,
  });
  const conversations = HOSTILE.map((text) => ({
    conversation: { id: text, title: text, leaf: "b", system: text, created: text, updated: 1 },
    // A circle of parents must not hang the page.
    messages: [message(text, "a", text.length % 2 ? "b" : null), message(text, "b", "a")],
  }));
  const buffer = Buffer.from(JSON.stringify({ format: "taper-conversations", version: 1, conversations }));
  await s.page.getByLabel("File of conversations").setInputFiles({ name: "x.json", mimeType: "application/json", buffer });
  await s.page.getByText(`Imported ${HOSTILE.length} conversations`).waitFor();
  for (const entry of (await s.page.locator(".entry a").all()).slice(0, 60)) {
    await entry.click();
    await s.page.locator("article").first().waitFor();
    assert.deepEqual(await s.page.evaluate(foul), []);
  }
  await clean(s);
}

export async function headers_and_size(tools) {
  const s = await open(tools);
  let bytes = 0;
  const seen = new Set();
  for (const url of new Set(s.requests)) {
    const { pathname } = new URL(url);
    if (/^\/(v1|metrics|version)/.test(pathname) || seen.has(pathname)) continue;
    seen.add(pathname);
    const response = await fetch(new URL(pathname, tools.target), { headers: { "accept-encoding": "gzip" } });
    assert.equal(response.status, 200, pathname);
    assert.match(response.headers.get("content-security-policy"), /^default-src 'self';/);
    assert.ok(!/unsafe/.test(response.headers.get("content-security-policy")));
    assert.equal(response.headers.get("x-content-type-options"), "nosniff");
    bytes += Number(response.headers.get("content-length"));
  }
  assert.ok(seen.has("/") && seen.size >= 4, [...seen].join(" "));
  assert.ok(bytes > 10_000 && bytes <= 400 << 10, `${bytes}`);
  console.log(`        first page: ${(bytes / 1024).toFixed(1)} KiB in ${seen.size} files`);
  await s.check();
}
