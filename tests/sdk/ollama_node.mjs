// Ollama's JavaScript client against a running server: does it find what it expects?
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { args, run } from "./cases.mjs";

const host = args["base-url"].replace(/\/v1\/?$/, "");
const client = new Ollama({ host, headers: { Authorization: `Bearer ${args["api-key"]}` } });
const model = args.model ?? (await client.list()).models[0].model;
const ask = (content, fields = {}) => ({
  model,
  messages: [{ role: "user", content }],
  options: { temperature: 0 },
  think: false,
  ...fields,
});

const cases = {
  async chat() {
    const answer = await client.chat(ask("What is 12 + 30?"));
    assert.match(answer.message.content, /42/);
    assert.ok(answer.done && answer.eval_count > 0);
  },

  async stream() {
    let text = "";
    let last;
    for await (const part of await client.chat(ask("What is 12 + 30?", { stream: true }))) {
      text += part.message.content;
      last = part;
    }
    assert.match(text, /42/);
    assert.equal(last.done_reason, "stop");
  },

  async generate() {
    const answer = await client.generate({ model, prompt: "What is 12 + 30?", think: false, options: { temperature: 0 } });
    assert.ok(answer.response);
    const raw = await client.generate({ model, prompt: "Once upon a", raw: true, options: { num_predict: 4 } });
    assert.equal(raw.eval_count, 4);
  },

  async tools() {
    const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
    const tool = { type: "function", function: { name: "get_weather", description: "Get a weather.", parameters } };
    const answer = await client.chat(ask("Please get a weather with city Paris.", { tools: [tool] }));
    assert.deepEqual(answer.message.tool_calls[0].function.arguments, { city: "Paris" });
  },

  async models() {
    assert.equal((await client.ps()).models[0].model, model);
    assert.ok((await client.show({ model })).capabilities.includes("completion"));
    assert.ok((await client.version()).version);
  },

  async errors() {
    await assert.rejects(client.chat({ ...ask("x"), model: "no-such-model" }), (error) => error.status_code === 404);
  },
};

await run(cases);
