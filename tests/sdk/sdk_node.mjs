// The OpenAI Node SDK against a running server: does it find what it expects?
import assert from "node:assert/strict";
import OpenAI from "openai";
import { args, run } from "./cases.mjs";

const connect = (apiKey) =>
  new OpenAI({ baseURL: args["base-url"], apiKey, maxRetries: 0, timeout: 120_000 });
const client = connect(args["api-key"]);
const model = args.model ?? (await client.models.list()).data[0].id;
const ask = (content) => [{ role: "user", content }];
const chat = (text, fields = {}, options = {}) =>
  client.chat.completions.create(
    { model, messages: ask(text), temperature: 0, max_tokens: 64, ...fields },
    options,
  );
const collect = async (stream) => {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
};
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get a weather.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];
const toolPrompt = "Please get a weather with city Paris.";

const cases = {
  async chat() {
    const answer = await chat("Hello!");
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.ok(answer.choices[0].message.content.trim());
    const { prompt_tokens: p, completion_tokens: c, total_tokens: t } = answer.usage;
    assert.ok(p >= 3 && c > 0 && p + c === t);
  },
  async stream() {
    const whole = (await chat("Hello!")).choices[0].message.content;
    const chunks = await collect(
      await chat("Hello!", { stream: true, stream_options: { include_usage: true } }),
    );
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
    const usage = chunks.pop();
    assert.deepEqual(usage.choices, []);
    assert.ok(usage.usage.completion_tokens > 0);
    assert.ok(chunks.every((c) => c.usage === null));
    assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
    assert.ok(chunks.slice(0, -1).every((c) => c.choices[0].finish_reason === null));
    assert.equal(chunks.map((c) => c.choices[0].delta.content ?? "").join(""), whole);
  },
  async toolsRoundTrip() {
    const { choices } = await chat(toolPrompt, { tools, max_tokens: 200 });
    assert.equal(choices[0].finish_reason, "tool_calls");
    const call = choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "get_weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
    const messages = [
      ...ask(toolPrompt),
      choices[0].message,
      { role: "tool", tool_call_id: call.id, content: '{"result": "sunny"}' },
    ];
    const final = await chat("", { messages, tools, max_tokens: 100 });
    assert.ok(final.choices[0].message.content);
  },
  async toolsWithTheStreamHelper() {
    const runner = client.chat.completions.stream({
      model, messages: ask(toolPrompt), tools, temperature: 0, max_tokens: 200,
    });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].finish_reason, "tool_calls");
    const call = final.choices[0].message.tool_calls[0];
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  },
  async severalChoices() {
    const { choices } = await chat("Tell me a joke.", { n: 3, temperature: 1, max_tokens: 16 });
    assert.deepEqual(choices.map((c) => c.index), [0, 1, 2]);
  },
  async seedIsReproducible() {
    const draw = async (seed) =>
      (await chat("Tell me a joke.", { temperature: 1.5, seed, max_tokens: 24 })).choices[0].message.content;
    assert.equal(await draw(42), await draw(42));
  },
  async logprobs() {
    const { choices } = await chat("Hello!", { logprobs: true, top_logprobs: 2 });
    assert.ok(choices[0].logprobs.content.every((e) => e.top_logprobs.length === 2 && e.logprob <= 0));
  },
  async completions() {
    const answer = await client.completions.create({ model, prompt: "Rust is", max_tokens: 5, temperature: 0 });
    assert.equal(answer.object, "text_completion");
    assert.ok(answer.choices[0].text);
  },
  async abortInTheMiddle() {
    const stream = await chat("Count to ten.", { stream: true, max_tokens: 2000, ignore_eos: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 3) break;
    assert.ok(stream.controller.signal.aborted);
    assert.ok((await chat("Hello!")).choices[0].message.content);
  },
  async typedErrors() {
    await assert.rejects(chat("x", { model: "no-such-model" }), (e) =>
      e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    await assert.rejects(chat("x", { temperature: 9 }), (e) =>
      e instanceof OpenAI.BadRequestError && e.param === "temperature");
    await assert.rejects(chat("x", { frobnicate: 1 }), (e) =>
      e instanceof OpenAI.BadRequestError && e.code === "unknown_parameter");
    if (args["api-key"] !== "none") {
      await assert.rejects(connect("wrong").models.list(), OpenAI.AuthenticationError);
    }
  },
};

await run(cases);
