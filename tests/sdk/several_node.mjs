// Ollama's JavaScript client against a server of several models, which tests/several.py starts.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { args, run } from "./cases.mjs";

const host = args["base-url"].replace(/\/v1\/?$/, "");
const client = new Ollama({ host, headers: { Authorization: `Bearer ${args["api-key"]}` } });
const names = async () => (await client.list()).models.map((model) => model.model);
const loaded = async () => (await client.ps()).models.map((model) => model.model);
const say = (model) =>
  client.generate({ model, prompt: "What is 12 + 30?", think: false, options: { temperature: 0, num_predict: 8 } });

const cases = {
  async models() {
    assert.deepEqual((await names()).slice(0, 3), ["m0", "m1", "m2"]);
    assert.ok((await client.show({ model: "m2" })).capabilities.includes("completion"));
    for (const model of ["m2", "m0", "m1"]) assert.ok((await say(model)).response);
    assert.deepEqual(await loaded(), ["m0", "m1"]);
  },

  async pull() {
    const counts = [];
    let last;
    for await (const part of await client.pull({ model: "org/name", stream: true })) {
      if (part.digest === "model.safetensors") counts.push(part.completed);
      last = part.status;
    }
    assert.equal(last, "success");
    assert.ok(counts.length > 3, String(counts));
    assert.equal((await say("org/name")).model, "org/name");
  },

  async abort() {
    // Stopping a download is all that a client does to cancel it.
    const stream = await client.pull({ model: "org/slow", stream: true });
    await assert.rejects(async () => {
      for await (const part of stream) if (part.completed > 0 && part.digest === "model.safetensors") stream.abort();
    });
    assert.ok(!(await names()).includes("org/slow"));
  },

  async delete() {
    await assert.rejects(client.delete({ model: "org/name" }), /unload it first/);
    await client.generate({ model: "org/name", keep_alive: 0 });
    while ((await loaded()).includes("org/name"));
    assert.equal((await client.delete({ model: "org/name" })).status, "success");
    assert.ok(!(await names()).includes("org/name"));
  },
};

await run(cases);
