// The pictures of docs/app.md.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { Session } from "./browser.mjs";
import { says } from "./proxy.mjs";

const ANSWER = `A **binary search** halves the range at each step, so it needs about $\\log_2 n$ comparisons.

\`\`\`rust
fn find(list: &[u32], wanted: u32) -> Option<usize> {
    let (mut low, mut high) = (0, list.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match list[middle].cmp(&wanted) {
            Ordering::Equal => return Some(middle),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    None
}
\`\`\`

| n | comparisons |
|--:|--:|
| 1,000 | 10 |
| 1,000,000 | 20 |`;

export async function screenshots({ browser, proxy, key }, folder) {
  await mkdir(folder, { recursive: true });
  const shot = (s, name) => s.page.screenshot({ path: join(folder, `${name}.png`) });
  const size = { viewport: { width: 1040, height: 680 } };
  const s = await Session.open(browser, proxy, key, { ...size, colorScheme: "light" });
  for (const text of ["A name for a sailing boat", "Explain TLS in five lines", "What is 12 + 30?"]) {
    await s.ask(text);
    await s.go("#/");
    await s.page.getByRole("heading", { name: "New chat" }).waitFor();
  }
  proxy.script = async function* () {
    yield { reasoning_content: "The halves first." };
    yield* says(ANSWER)();
  };
  await s.ask("How does a binary search work?");
  await s.answer().locator("math").waitFor();
  await s.answer().locator(".hljs-keyword").first().waitFor();
  await s.page.waitForTimeout(300);
  await s.page.locator(".scroll").evaluate((element) => (element.scrollTop = 0));
  await shot(s, "chat");
  proxy.script = null;
  await s.go("#/machine");
  const ask = () =>
    s.page.evaluate(async (bearer) => {
      const headers = { "content-type": "application/json", authorization: `Bearer ${bearer}` };
      const body = JSON.stringify({ messages: [{ role: "user", content: "Tell me a story" }], max_tokens: 400, ignore_eos: true });
      await (await fetch("v1/chat/completions", { method: "POST", headers, body })).text();
    }, key);
  for (let i = 0; i < 6; i += 1) {
    await Promise.all(Array.from({ length: 1 + (i % 3) }, ask));
    await s.page.waitForTimeout(1200);
  }
  await shot(s, "machine");
  await s.close();
  proxy.script = says(ANSWER);
  const phone = await Session.open(browser, proxy, key, { viewport: { width: 390, height: 780 }, colorScheme: "dark", isMobile: true });
  await phone.ask("How does a binary search work?");
  await phone.answer().locator(".hljs-keyword").first().waitFor();
  await phone.page.waitForTimeout(300);
  await phone.page.locator(".scroll").evaluate((element) => (element.scrollTop = 0));
  await shot(phone, "phone");
}
