// Conversations.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { Session } from "./browser.mjs";
import { says, sleep } from "./proxy.mjs";

async function open({ browser, proxy, key }, options) {
  return Session.open(browser, proxy, key, options);
}

export async function answers_of_the_model(tools) {
  const begun = performance.now();
  const s = await open(tools);
  await s.page.getByRole("heading", { name: "taper-demo" }).waitFor();
  const ready = performance.now();
  await s.ask("What is 12 + 30?");
  const answered = performance.now();
  console.log(`        page after ${Math.round(ready - begun)} ms, answer after ${Math.round(answered - ready)} ms`);
  assert.match(await s.answer().locator(".prose").innerText(), /42/);
  // An answer that comes at once has no speed.
  assert.match(await s.answer().locator(".numbers").innerText(), /\d+ tokens( · [\d.,]+ tok\/s)? · first after/);
  assert.match(await s.page.locator(".meter").innerText(), /\d+ \/ \d+k/);
  // The second turn finds the first in the cache, and has it in its messages.
  await s.ask("Hello");
  assert.deepEqual(tools.proxy.asked.at(-1).messages.map((m) => m.role), ["user", "assistant", "user"]);
  assert.equal(await s.page.title(), "Taper");
  await s.check();
}

/** A text in small parts, slowly. */
const slowly = (text, ms = 15) =>
  async function* () {
    for (const part of text.match(/.{1,4}/gsu)) {
      yield { content: part };
      await sleep(ms);
    }
  };

const LONG = `# Heading\n\nFirst paragraph with **bold** text.\n\n- one\n- two\n\n\`\`\`python\nprint("x")\n\`\`\`\n\n${"word ".repeat(60)}`;

export async function streams(tools) {
  tools.proxy.script = slowly(LONG);
  const s = await open(tools);
  await s.send("Go");
  const prose = s.answer().locator(".prose");
  await prose.locator("h1").waitFor();
  await prose.locator("h1").evaluate((element) => (window.heading = element));
  await prose.locator("pre").waitFor();
  const early = (await prose.innerText()).length;
  assert.equal(await s.answer().getAttribute("aria-busy"), "true");
  await s.settled();
  assert.ok((await prose.innerText()).length > early);
  // What is settled is not rendered again.
  assert.ok(await prose.locator("h1").evaluate((element) => element === window.heading));
  assert.equal(await prose.locator("li").count(), 2);
  await prose.locator(".hljs-string").waitFor();
  assert.match(await s.answer().locator(".numbers").innerText(), /64 of 100 cached/);
  await s.check();
}

export async function renders_once_a_frame(tools) {
  tools.proxy.script = async function* () {
    for (let i = 0; i < 3000; i += 1) yield { content: i % 40 === 39 ? "\n\n" : `w${i} ` };
  };
  const s = await open(tools);
  await s.page.evaluate(() => {
    window.changes = 0;
    window.frames = 0;
    const count = () => {
      window.frames += 1;
      requestAnimationFrame(count);
    };
    requestAnimationFrame(count);
    new MutationObserver(() => (window.changes += 1)).observe(document.body, { childList: true, subtree: true });
  });
  await s.ask("Go");
  const { changes, frames } = await s.page.evaluate(() => ({ changes: window.changes, frames: window.frames }));
  assert.ok(changes <= 2 * frames + 20, `${changes} changes in ${frames} frames`);
  assert.match(await s.answer().locator(".prose").innerText(), /w2998/);
  await s.check();
}

export async function stops_and_continues(tools) {
  tools.proxy.script = slowly("word ".repeat(2000), 5);
  const s = await open(tools);
  for (const stop of [() => s.page.keyboard.press("Escape"), () => s.page.getByRole("button", { name: "Stop" }).click()]) {
    await s.send("Go");
    await s.answer().locator(".prose p").waitFor();
    await stop();
    await s.settled();
    assert.match(await s.answer().locator(".numbers").innerText(), /stopped/);
  }
  const before = (await s.answer().locator(".prose").innerText()).trim();
  tools.proxy.script = says(" and an end");
  await s.answer().getByRole("button", { name: "Continue" }).click();
  await s.page.getByText("and an end").waitFor();
  await s.settled();
  const after = (await s.answer().locator(".prose").innerText()).trim();
  assert.ok(after.startsWith(before) && after.endsWith("and an end"));
  const asked = tools.proxy.asked.at(-1);
  assert.equal(asked.continue_final_message, true);
  assert.equal(asked.add_generation_prompt, false);
  assert.equal(asked.messages.at(-1).role, "assistant");
  await s.check();
}

export async function continues_with_the_model(tools) {
  const s = await open(tools);
  await s.page.evaluate(() => {
    const sampling = { max_tokens: 3, temperature: 0 };
    localStorage.setItem("taper.settings", JSON.stringify({ sampling, thinking: "off" }));
  });
  await s.page.reload();
  await s.ask("What is 12 + 30?");
  assert.match(await s.answer().locator(".numbers").innerText(), /cut at the token limit/);
  const before = (await s.answer().locator(".prose").innerText()).trim();
  await s.answer().getByRole("button", { name: "Continue" }).click();
  await s.answer().getByRole("button", { name: "Regenerate" }).waitFor();
  await s.page.waitForFunction((old) => document.querySelector(".prose").innerText.trim().length > old, before.length);
  assert.ok((await s.answer().locator(".prose").innerText()).trim().startsWith(before));
  await s.check();
}

export async function edits_branch_and_regenerate(tools) {
  let count = 0;
  tools.proxy.script = (asked) => says(`answer ${(count += 1)} to ${asked.messages.at(-1).content}`)();
  const s = await open(tools);
  await s.ask("first");
  await s.ask("second");
  const user = s.page.locator("article.user").first();
  await user.hover();
  await user.getByRole("button", { name: "Edit message" }).click();
  await s.page.locator(".editor textarea").fill("changed");
  await s.page.locator(".editor").getByRole("button", { name: "Send" }).click();
  await s.page.getByText("answer 3 to changed").waitFor();
  await s.settled();
  assert.equal(await s.page.locator("article").count(), 2);
  await user.hover();
  await user.getByRole("button", { name: "Previous version" }).click();
  await s.page.getByText("answer 2 to second").waitFor();
  assert.equal(await s.page.locator("article").count(), 4);
  await s.answer().getByRole("button", { name: "Regenerate" }).click();
  await s.page.getByText("answer 4 to second").waitFor();
  await s.settled();
  assert.equal(await s.answer().locator(".branches").innerText(), "2/2");
  await s.answer().getByRole("button", { name: "Previous version" }).click();
  await s.page.getByText("answer 2 to second").waitFor();
  // An answer can be put right, beside what the model said.
  await s.answer().getByRole("button", { name: "Edit message" }).click();
  await s.page.locator(".editor textarea").fill("put right");
  await s.page.locator(".editor").getByRole("button", { name: "Save" }).click();
  await s.page.getByText("put right").waitFor();
  assert.equal(await s.answer().locator(".branches").innerText(), "3/3");
  assert.equal(tools.proxy.asked.length, 4);
  await s.check();
}

export async function reload_restores(tools) {
  tools.proxy.script = says("kept answer");
  const s = await open(tools);
  await s.ask("kept question");
  tools.proxy.script = slowly("part ".repeat(2000), 5);
  await s.send("another");
  await s.answer().locator(".prose p").waitFor();
  await sleep(1500);
  await s.page.reload();
  await s.page.getByText("kept answer").waitFor();
  assert.match(await s.answer().locator(".prose").innerText(), /part part/);
  assert.match(await s.answer().locator(".numbers").innerText(), /interrupted/);
  const entry = s.page.locator(".entry").first();
  await entry.hover();
  await entry.getByRole("button", { name: /Rename/ }).click();
  await entry.getByRole("textbox").fill("New name");
  await entry.getByRole("textbox").press("Enter");
  await s.page.reload();
  await s.page.getByRole("heading", { name: "New name" }).waitFor();
  await entry.hover();
  await entry.getByRole("button", { name: /Delete/ }).click();
  await entry.getByRole("button", { name: "Delete?" }).click();
  await entry.waitFor({ state: "detached" });
  await s.page.reload();
  assert.equal(await s.page.locator(".entry").count(), 0);
  await s.check();
}

export async function reasoning_is_folded(tools) {
  tools.proxy.script = async function* () {
    yield { reasoning_content: "First *this*" };
    yield { reasoning_content: ", then that." };
    yield { content: "The answer." };
  };
  const s = await open(tools);
  await s.ask("Think");
  const details = s.answer().locator("details.reasoning");
  assert.equal(await details.getAttribute("open"), null);
  await details.locator("summary").click();
  assert.equal((await details.locator(".prose").innerText()).trim(), "First this, then that.");
  await s.ask("More");
  assert.equal(tools.proxy.asked.at(-1).messages[1].reasoning_content, "First *this*, then that.");
  await s.check();
}

export async function tool_calls_are_shown(tools) {
  const definition = [{ name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } }];
  const s = await open(tools);
  await s.go("#/settings");
  await s.page.getByLabel("Tools", { exact: true }).fill(JSON.stringify(definition));
  await s.go("#/");
  tools.proxy.script = async function* () {
    yield { tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "get_weather", arguments: "" } }] };
    yield { tool_calls: [{ index: 0, function: { arguments: '{"city": ' } }] };
    yield { tool_calls: [{ index: 0, function: { arguments: '"Paris"}' } }] };
  };
  await s.ask("Weather in Paris?");
  assert.equal(tools.proxy.asked[0].tools[0].function.name, "get_weather");
  const call = s.answer().getByRole("region", { name: "Call of get_weather" });
  assert.match(await call.innerText(), /"city": "Paris"/);
  tools.proxy.script = says("It rains.");
  await call.getByRole("textbox").fill("rain");
  await call.getByRole("button", { name: "Send result" }).click();
  await s.page.getByText("It rains.").waitFor();
  const { messages } = tools.proxy.asked[1];
  assert.equal(messages[1].tool_calls[0].id, "call_1");
  assert.deepEqual(messages[2], { role: "tool", content: "rain", tool_call_id: "call_1" });
  // The model's own calls, and that the server takes the conversation.
  tools.proxy.script = null;
  await s.ask("Please get a weather with city Paris.");
  await s.check();
}

export async function files_are_dropped_in(tools) {
  tools.proxy.script = says("ok");
  const s = await open(tools);
  const drop = async (name, type, bytes) => {
    const transfer = await s.page.evaluateHandle(
      ([n, t, b]) => {
        const made = new DataTransfer();
        made.items.add(new File([new Uint8Array(b)], n, { type: t }));
        return made;
      },
      [name, type, [...bytes]],
    );
    await s.page.locator(".chat").dispatchEvent("drop", { dataTransfer: transfer });
  };
  await drop("notes.md", "text/markdown", Buffer.from("```\nfenced\n```\n"));
  await s.page.locator(".composer .file").waitFor();
  await drop("x.bin", "application/octet-stream", Buffer.from([0, 255, 1]));
  await s.page.getByText("x.bin is not a text file").waitFor();
  const png = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");
  await drop("dot.png", "image/png", png);
  await s.page.getByText("this model does not see pictures").waitFor();
  await s.ask("Read this");
  assert.equal(tools.proxy.asked[0].messages[0].content, "File: notes.md\n````\n```\nfenced\n```\n````\n\nRead this");
  assert.equal(await s.page.locator("article.user .file").innerText(), "notes.md");
  // A model that says that it sees gets the picture.
  tools.proxy.models = (list) => ({ ...list, data: list.data.map((m) => ({ ...m, input_modalities: ["text", "image"] })) });
  await s.page.reload();
  await drop("dot.png", "image/png", png);
  await s.page.locator(".composer .file img").waitFor();
  await s.ask("And this");
  const parts = tools.proxy.asked[1].messages.at(-1).content;
  assert.deepEqual(parts.map((part) => part.type), ["image_url", "text"]);
  assert.match(parts[0].image_url.url, /^data:image\/png;base64,/);
  await s.check();
}

export async function code_is_copied(tools) {
  tools.proxy.script = says("```rust\nfn main() {}\n```\n\nInline $a^2 + b^2$ and it costs $5 or $6.\n\n$$\\frac{1}{2}$$");
  const s = await open(tools);
  assert.ok(!s.requests.some((url) => /katex|highlight/.test(url)), "loaded before they are needed");
  await s.ask("Code");
  await s.answer().getByRole("button", { name: "Copy", exact: true }).click();
  await s.answer().getByRole("button", { name: "Copied" }).waitFor();
  assert.equal(await s.page.evaluate(() => navigator.clipboard.readText()), "fn main() {}\n");
  await s.answer().locator(".hljs-keyword").waitFor();
  await s.answer().locator("div.math mfrac").waitFor();
  assert.equal(await s.answer().locator("math").count(), 2);
  assert.match(await s.answer().innerText(), /it costs \$5 or \$6\./);
  await s.answer().getByRole("button", { name: "Copy message" }).click();
  assert.match(await s.page.evaluate(() => navigator.clipboard.readText()), /^```rust/);
  await s.check();
}

export async function searches_and_keys(tools) {
  tools.proxy.script = (asked) => says(`reply about ${asked.messages.at(-1).content} and pelicans`)();
  const s = await open(tools);
  for (const text of ["apples", "pears", "plums"]) {
    await s.ask(text);
    await s.page.keyboard.press("Control+Shift+O");
    await s.page.getByRole("heading", { name: "New chat" }).waitFor();
  }
  await s.page.keyboard.press("Control+k");
  const box = s.page.getByRole("combobox", { name: "Search conversations" });
  await box.fill("about pears");
  await s.page.getByRole("option").filter({ hasText: "pears" }).waitFor();
  await s.page.waitForFunction(() => document.querySelectorAll("[role=option]").length === 1);
  assert.match(await s.page.getByRole("option").innerText(), /reply about pears/);
  await box.fill("pelicans");
  await s.page.waitForFunction(() => document.querySelectorAll("[role=option]").length === 3);
  await box.press("ArrowDown");
  await box.press("ArrowDown");
  await box.press("Enter");
  await s.page.getByRole("heading", { name: "apples" }).waitFor();
  await s.page.keyboard.press("Control+k");
  await box.fill("nothing of the kind");
  await s.page.getByText("Nothing found").waitFor();
  await s.page.keyboard.press("Escape");
  await box.waitFor({ state: "detached" });
  // "/" goes to the message, Shift+Enter makes a line, and the first link goes past the list.
  await s.page.locator("main").focus();
  await s.page.keyboard.press("/");
  await s.page.keyboard.type("one");
  await s.page.keyboard.press("Shift+Enter");
  await s.page.keyboard.type("two");
  assert.equal(await s.composer().inputValue(), "one\ntwo");
  await s.page.reload();
  await s.page.locator(".entry").first().waitFor();
  const first = s.page.locator("a, button, input, textarea, select").first();
  assert.equal(await first.innerText(), "Skip to the content");
  await first.focus();
  await s.page.keyboard.press("Enter");
  assert.equal(await s.page.evaluate(() => document.activeElement.id), "main");
  await s.check();
}

export async function exports_and_imports(tools) {
  tools.proxy.script = says("An **answer**.");
  const s = await open(tools);
  await s.ask("A question");
  const download = async (name) => {
    await s.page.locator(".menu summary").click();
    const [file] = await Promise.all([s.page.waitForEvent("download"), s.page.getByRole("button", { name }).click()]);
    await s.page.locator(".menu summary").click();
    return { name: file.suggestedFilename(), text: await readFile(await file.path(), "utf8") };
  };
  const markdown = await download("Export as Markdown");
  assert.equal(markdown.name, "A-question.md");
  assert.match(markdown.text, /^# A question\n\n## You\n\nA question\n\n## scripted\n\nAn \*\*answer\*\*\.\n$/);
  const json = await download("Export as JSON");
  assert.equal(JSON.parse(json.text).conversations[0].messages.length, 2);
  await s.go("#/settings");
  const choose = (name, text) =>
    s.page.getByLabel("File of conversations").setInputFiles({ name, mimeType: "application/json", buffer: Buffer.from(text) });
  await choose("a.json", json.text);
  await s.page.getByText("Imported 1 conversations").waitFor();
  assert.equal(await s.page.locator(".entry").count(), 2);
  await choose("b.json", '{"format": "other"}');
  await s.page.getByText("b.json: This is no file of exported conversations").waitFor();
  await choose("c.json", "not JSON");
  await s.page.getByText(/^c\.json: /).waitFor();
  await s.page.locator(".entry").first().click();
  await s.page.locator(".prose strong").waitFor();
  await s.go("#/settings");
  await s.page.getByRole("button", { name: "Delete all" }).click();
  await s.page.getByRole("button", { name: "Delete all, for good" }).click();
  await s.page.waitForFunction(() => document.querySelectorAll(".entry").length === 0);
  await s.check();
}
