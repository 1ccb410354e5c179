// Pages of the app, and what must hold on each of them whatever a test does.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

export const launch = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu"],
  });

export class Session {
  /** Opens the app with a key; null opens it without one. */
  static async open(browser, proxy, key, options = {}) {
    const session = new Session();
    const size = { width: 1120, height: 720 };
    session.context = await browser.newContext({ viewport: size, serviceWorkers: "block", ...options });
    await session.context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: proxy.url });
    if (key) await session.context.addInitScript(`localStorage.setItem("taper.key", ${JSON.stringify(key)})`);
    await session.context.addInitScript(() => {
      window.violations = [];
      addEventListener("securitypolicyviolation", (event) =>
        window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`),
      );
    });
    session.page = await session.context.newPage();
    session.proxy = proxy;
    session.errors = [];
    session.requests = [];
    const { page } = session;
    page.setDefaultTimeout(15_000);
    page.on("pageerror", (error) => session.errors.push(`error: ${error.message}`));
    page.on("dialog", (dialog) => {
      session.errors.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on("console", (message) => {
      if (/Content Security Policy|TrustedHTML/i.test(message.text())) session.errors.push(message.text());
    });
    page.on("request", (request) => {
      const url = request.url();
      session.requests.push(url);
      if (/^https?:/.test(url) && !url.startsWith(proxy.url)) session.errors.push(`foreign request: ${url}`);
    });
    await page.goto(proxy.url);
    await page.locator("main").waitFor();
    return session;
  }

  composer() {
    return this.page.getByRole("textbox", { name: "Message" }).last();
  }

  /** The newest answer. */
  answer() {
    return this.page.locator("article.assistant").last();
  }

  async send(text) {
    await this.composer().fill(text);
    await this.composer().press("Enter");
  }

  /** Sends, and waits for the end of the answer. */
  async ask(text) {
    const before = await this.page.locator("article.assistant").count();
    await this.send(text);
    await this.page.locator("article.assistant").nth(before).waitFor();
    await this.settled();
  }

  async settled() {
    await this.page.getByRole("button", { name: "Send", exact: true }).waitFor();
  }

  async go(hash) {
    await this.page.evaluate((to) => (location.hash = to), hash);
  }

  /** What must hold after everything. */
  async check() {
    this.errors.push(...(await this.page.evaluate(() => window.violations)));
    assert.deepEqual(this.errors, []);
  }

  async close() {
    await this.context.close();
  }
}
