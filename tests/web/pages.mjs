// Settings, models, machine; themes, phones, and life without a server.
import assert from "node:assert/strict";
import axe from "axe-core";
import { Session } from "./browser.mjs";
import { says, sleep } from "./proxy.mjs";

const open = ({ browser, proxy, key }, options) => Session.open(browser, proxy, key, options);

export async function settings_reach_the_request(tools) {
  const s = await open(tools);
  await s.go("#/settings");
  const fill = async (name, value) => s.page.getByLabel(name, { exact: true }).fill(value);
  await fill("Temperature", "0.7");
  await fill("Top p", "0.9");
  await fill("Top k", "40");
  await fill("Min p", "0.05");
  await fill("Typical p", "0.95");
  await fill("Repetition penalty", "1.1");
  await fill("Presence penalty", "0.2");
  await fill("Frequency penalty", "-0.3");
  await fill("Seed", "7");
  await fill("Most tokens of an answer", "24");
  await fill("Most tokens of thinking", "8");
  await fill("Stop strings", "END\nSTOP");
  await fill("System prompt of new chats", "Be brief.");
  await s.page.getByLabel("Thinking", { exact: true }).selectOption("on");
  await s.page.getByLabel("Effort of reasoning").selectOption("low");
  await fill("Further fields", "[]");
  await s.page.getByText("Fields are a JSON object", { exact: true }).waitFor();
  await fill("Further fields", '{"logit_bias": {"7": -1}, "messages": []}');
  // What is out of range is marked and not taken.
  await fill("Temperature", "9");
  assert.equal(await s.page.getByLabel("Temperature").getAttribute("aria-invalid"), "true");
  await fill("Temperature", "0.7");
  await s.page.reload();
  assert.equal(await s.page.getByLabel("Temperature").inputValue(), "0.7");
  const command = await s.page.locator('[data-command="request"]').innerText();
  assert.match(command, /"temperature":0.7/);
  assert.match(command, /^curl http:\/\/127\.0\.0\.1:\d+\/v1\/chat\/completions/);
  await s.go("#/");
  await s.ask("Hello");
  const { model, messages, stream, stream_options, ...rest } = tools.proxy.asked[0];
  assert.equal(model, "taper-demo");
  assert.deepEqual(messages[0], { role: "system", content: "Be brief." });
  assert.ok(stream && stream_options.include_usage);
  assert.deepEqual(rest, {
    temperature: 0.7,
    top_p: 0.9,
    top_k: 40,
    min_p: 0.05,
    typical_p: 0.95,
    repetition_penalty: 1.1,
    presence_penalty: 0.2,
    frequency_penalty: -0.3,
    seed: 7,
    max_tokens: 24,
    max_thinking_tokens: 8,
    stop: ["END", "STOP"],
    enable_thinking: true,
    reasoning_effort: "low",
    logit_bias: { 7: -1 },
  });
  // The server honours all of them.
  assert.equal(await s.page.locator("article .error").count(), 0);
  await s.go("#/settings");
  await s.page.getByLabel("Name of the preset").fill("Mine");
  await s.page.getByRole("button", { name: "Keep as preset" }).click();
  await s.page.getByRole("button", { name: "Reset", exact: true }).click();
  assert.equal(await s.page.getByLabel("Temperature").inputValue(), "");
  await s.page.getByRole("button", { name: "Use preset Mine" }).click();
  assert.equal(await s.page.getByLabel("Temperature").inputValue(), "0.7");
  await s.page.getByLabel("Port").fill("9000");
  await s.page.getByLabel("KV cache").selectOption("taper4");
  const serve = await s.page.locator('[data-command="server"]').innerText();
  assert.match(serve, /taper serve \\\n {2}--port 9000 \\\n {2}--kv-cache-dtype taper4$/);
  await s.check();
}

export async function a_chat_has_its_own_system_prompt(tools) {
  tools.proxy.script = says("ok");
  const s = await open(tools);
  await s.ask("one");
  await s.page.getByRole("button", { name: "System prompt" }).click();
  await s.page.getByLabel("System prompt of this chat").fill("Only here.");
  await s.ask("two");
  assert.deepEqual(tools.proxy.asked[1].messages[0], { role: "system", content: "Only here." });
  await s.go("#/");
  await s.page.getByRole("heading", { name: "New chat" }).waitFor();
  await s.ask("three");
  assert.equal(tools.proxy.asked[2].messages[0].role, "user");
  await s.check();
}

export async function models_and_machine(tools) {
  const s = await open(tools);
  await s.ask("What is 12 + 30?");
  await s.go("#/models");
  const card = s.page.locator(".card").filter({ hasText: "taper-demo" });
  await card.getByText("MiB").waitFor();
  assert.match(await card.innerText(), /Context\s+[\d,]+ tokens/);
  await s.page.getByText("KV cache").waitFor();
  await s.go("#/machine");
  await s.page.getByRole("heading", { name: "Since the start" }).waitFor();
  await s.page.waitForFunction(() => /^M.*L/.test(document.querySelector(".plot path.line")?.getAttribute("d") ?? ""));
  assert.match(await s.page.locator(".facts").innerText(), /Tokens written\s+[\d,]+/);
  // An adapter is a model of its own, and can be chosen.
  tools.proxy.models = (list) => ({ ...list, data: [...list.data, { ...list.data[0], id: "my-lora", parent: list.data[0].id }] });
  tools.proxy.script = says("ok");
  await s.go("#/models");
  await s.page.getByRole("button", { name: "Use in chats" }).last().click();
  await s.go("#/");
  await s.page.getByRole("heading", { name: "New chat" }).waitFor();
  await s.ask("Hello");
  assert.equal(tools.proxy.asked.at(-1).model, "my-lora");
  await s.check();
}

const background = (s) => s.page.evaluate(() => getComputedStyle(document.body).backgroundColor);

export async function themes(tools) {
  const s = await open(tools, { colorScheme: "light" });
  const light = await background(s);
  await s.page.emulateMedia({ colorScheme: "dark" });
  const dark = await background(s);
  assert.notEqual(light, dark);
  await s.go("#/settings");
  await s.page.getByLabel("Theme").selectOption("light");
  assert.equal(await background(s), light);
  await s.page.reload();
  assert.equal(await background(s), light);
  await s.page.getByLabel("Theme").selectOption("dark");
  await s.page.emulateMedia({ colorScheme: "light" });
  assert.equal(await background(s), dark);
  await s.check();
}

const PAGES = ["#/", "#/models", "#/machine", "#/settings"];
const RICH =
  "Text with `code`, **bold** and [a link](https://example.com).\n\n```python\nfor i in range(10):\n    print(f\"a line that is long enough to need a scroll bar on a phone {i}\")\n```\n\n" +
  "| name | value | note |\n|---|--:|---|\n| a | 1 | first |\n| b | 2 | second |\n\n> quoted\n\n$$\\sum_{i=0}^n i = \\frac{n(n+1)}{2}$$";

export async function phones(tools) {
  tools.proxy.script = says(RICH);
  for (const width of [390, 320]) {
    const s = await open(tools, { viewport: { width, height: 780 }, hasTouch: true, isMobile: true });
    await s.ask("Hello");
    for (const page of [null, ...PAGES]) {
      if (page) await s.go(page);
      await s.page.waitForTimeout(150);
      const wide = await s.page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `${page}: ${wide}`);
      const cut = await s.page.evaluate((w) => {
        const all = [...document.querySelectorAll("main button, main input, main h1, main .card")];
        return all.filter((e) => e.offsetParent && !e.closest(".hidden, pre, .table") && e.getBoundingClientRect().right > w + 1).map((e) => e.outerHTML);
      }, width);
      assert.deepEqual(cut, []);
    }
    await s.page.getByRole("button", { name: "Open the list" }).click();
    await s.page.locator(".entry").first().getByRole("link").click();
    await s.page.getByText("quoted").waitFor();
    await s.page.locator(".sidebar.open").waitFor({ state: "detached" });
    await s.check();
    await s.close();
  }
}

export async function accessible(tools) {
  tools.proxy.script = async function* () {
    yield { reasoning_content: "A thought." };
    yield { content: RICH };
    yield { tool_calls: [{ index: 0, id: "c", function: { name: "tool", arguments: "{}" } }] };
  };
  for (const colorScheme of ["light", "dark"]) {
    const s = await open(tools, { colorScheme });
    await s.page.evaluate(axe.source);
    const look = async (where) => {
      const { violations } = await s.page.evaluate(() => window.axe.run(document));
      const bad = violations.filter((v) => ["serious", "critical"].includes(v.impact));
      assert.deepEqual(bad.map((v) => `${where}: ${v.id} ${v.nodes.map((n) => n.html).join(" ")}`), []);
    };
    await look("welcome");
    await s.ask("Hello");
    await s.answer().locator("math").waitFor();
    await s.answer().locator(".hljs-keyword").first().waitFor();
    await s.answer().locator("details.reasoning summary").click();
    await look("chat");
    await s.page.getByRole("button", { name: "System prompt" }).click();
    await s.answer().getByRole("button", { name: "Edit message" }).click();
    await look("editing");
    await s.page.keyboard.press("Control+k");
    await s.page.getByRole("option").first().waitFor();
    await look("search");
    await s.page.keyboard.press("Escape");
    for (const page of PAGES.slice(1)) {
      await s.go(page);
      await s.page.waitForTimeout(200);
      await look(page);
    }
    await s.close();
  }
}

export async function asks_for_the_key(tools) {
  if (!tools.key) return;
  const s = await open({ ...tools, key: null });
  const dialog = s.page.getByRole("dialog", { name: "API key" });
  await dialog.waitFor();
  await dialog.getByLabel("Key", { exact: true }).fill("wrong");
  await dialog.getByRole("button", { name: "Use key" }).click();
  await dialog.getByText("does not take the key").waitFor();
  await dialog.getByLabel("Key", { exact: true }).fill(tools.key);
  await dialog.getByRole("button", { name: "Use key" }).click();
  await dialog.waitFor({ state: "detached" });
  await s.page.getByRole("heading", { name: "taper-demo" }).waitFor();
  await s.ask("Hello");
  await s.page.reload();
  await s.page.getByText("Hello").first().waitFor();
  assert.equal(await dialog.count(), 0);
  await s.check();
}

export async function errors_are_told(tools) {
  const s = await open(tools);
  tools.proxy.script = async function* () {
    yield { content: "A beginning" };
    await sleep(200);
    throw new Error("cut");
  };
  await s.send("Hello");
  await s.answer().getByRole("alert").waitFor();
  assert.match(await s.answer().innerText(), /A beginning[^]*The connection was cut/);
  // The server's own words.
  tools.proxy.script = null;
  await s.page.evaluate(() => localStorage.setItem("taper.settings", JSON.stringify({ sampling: { top_p: 7 } })));
  await s.page.reload();
  await s.send("Hello");
  await s.page.getByText(/top_p/).waitFor();
  await s.check();
}

export async function works_offline(tools) {
  const s = await open(tools, { serviceWorkers: "allow" });
  await s.ask("What is 12 + 30?");
  await s.page.evaluate(() => navigator.serviceWorker.ready);
  await s.page.reload();
  await s.page.waitForFunction(() => navigator.serviceWorker.controller !== null);
  // Browsers offer to install it.
  const devtools = await s.context.newCDPSession(s.page);
  const { installabilityErrors } = await devtools.send("Page.getInstallabilityErrors");
  assert.deepEqual(installabilityErrors.filter((error) => error.errorId !== "in-incognito"), []);
  await s.context.setOffline(true);
  tools.proxy.close();
  await s.page.reload();
  await s.page.getByText("What is 12 + 30?").first().waitFor();
  await s.send("Still there?");
  await s.page.getByText("The server does not answer").first().waitFor();
  assert.deepEqual(await s.page.evaluate(() => window.violations), []);
}
