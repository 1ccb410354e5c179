// Models that come and go: loading, unloading, downloads, and what a chat is asked of.
import assert from "node:assert/strict";
import { Session } from "./browser.mjs";

const open = ({ browser, proxy, key }) => Session.open(browser, proxy, key);

/** The card of a model. */
const card = (s, name) => s.page.locator("li.card").filter({ has: s.page.getByRole("heading", { name: new RegExp(`^${name} `) }) });
const is = (s, name, state) => card(s, name).locator(".badge", { hasText: new RegExp(`^${state}$`) }).waitFor();

/** Unloads what other cases have loaded. */
async function unloadAll({ target, key }) {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const { data } = await (await fetch(new URL("v1/models", target), { headers })).json();
  for (const { id, status } of data) {
    if (status.value !== "loaded") continue;
    const body = JSON.stringify({ model: id });
    assert.ok((await fetch(new URL("models/unload", target), { method: "POST", headers, body })).ok);
  }
}

export async function models_are_loaded_and_unloaded(tools) {
  await unloadAll(tools);
  const s = await open(tools);
  await s.go("#/models");
  for (const name of ["m0", "m1", "m2"]) await is(s, name, "unloaded");
  await s.page.getByRole("button", { name: "Load m0" }).click();
  await is(s, "m0", "loaded");
  await card(s, "m0").getByText("In memory").waitFor();
  await s.page.getByRole("button", { name: "Load m1" }).click();
  await is(s, "m1", "loaded");
  // Two fit: the third takes the place of the first.
  await s.page.getByRole("button", { name: "Load m2" }).click();
  await is(s, "m2", "loaded");
  await is(s, "m0", "unloaded");
  await s.page.getByText("2 of 3").waitFor();
  await s.page.getByRole("button", { name: "Unload m1" }).click();
  await is(s, "m1", "unloaded");
  await s.check();
}

export async function a_chat_is_asked_of_the_chosen_model(tools) {
  const s = await open(tools);
  const picker = s.page.getByLabel("Model", { exact: true });
  await picker.selectOption("m1");
  await s.ask("Hello");
  assert.equal(tools.proxy.asked.at(-1).model, "m1");
  await picker.selectOption("m0");
  await s.ask("Hello again");
  assert.equal(tools.proxy.asked.at(-1).model, "m0");
  await s.go("#/models");
  await is(s, "m0", "loaded");
  await s.check();
}

export async function a_model_is_downloaded_used_and_deleted(tools) {
  const s = await open(tools);
  await s.go("#/models");
  const name = s.page.getByLabel("Name on the Hugging Face hub");
  // One that is stopped.
  await name.fill("org/slow");
  await s.page.getByRole("button", { name: "Download", exact: true }).click();
  await s.page.getByText(/pulling model.safetensors, .* of 14.4 MiB/).waitFor();
  await s.page.getByRole("button", { name: "Stop", exact: true }).click();
  await s.page.getByText(/pulling/).waitFor({ state: "detached" });
  // One that is not there.
  await name.fill("org/none");
  await name.press("Enter");
  await s.page.getByText(/has no model org\/none/).waitFor();
  await name.fill("org/name");
  await name.press("Enter");
  await s.page.getByRole("progressbar", { name: "Progress of org/name" }).waitFor();
  await is(s, "org/name", "unloaded");
  await s.page.getByRole("button", { name: "Load org/name" }).click();
  await is(s, "org/name", "loaded");
  const remove = s.page.getByRole("button", { name: "Delete org/name" });
  assert.ok(await remove.isDisabled());
  await s.page.getByRole("button", { name: "Unload org/name" }).click();
  await is(s, "org/name", "unloaded");
  await remove.click();
  await s.page.getByRole("button", { name: "Keep", exact: true }).click();
  await is(s, "org/name", "unloaded");
  await remove.click();
  await s.page.getByRole("button", { name: "Delete its files" }).click();
  await card(s, "org/name").waitFor({ state: "detached" });
  await s.check();
}
