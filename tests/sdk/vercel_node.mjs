// Vercel's AI SDK against a running server: do its providers find what they expect?
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { args, run } from "./cases.mjs";

const baseURL = args["base-url"];
const apiKey = args["api-key"];
const headers = { authorization: `Bearer ${apiKey}` };
const served = await fetch(`${baseURL}/models`, { headers }).then((r) => r.json());
const name = args.model ?? served.data[0].id;
const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({
  name: "taper", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});
// The model of `openai(name)` is of the Responses API.
const models = { responses: openai(name), chat: openai.chat(name), compatible: compatible(name) };

const settings = { temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const told = "The result of get_weather is 48213.";
const weather = () => {
  const cities = [];
  const get_weather = tool({
    description: "Get a weather.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return { result: "48213" };
    },
  });
  const prompt = "Please get a weather with city Paris.";
  return { cities, loop: { tools: { get_weather }, prompt, stopWhen: stepCountIs(3) } };
};
const schema = z.object({
  name: z.string().max(30),
  age: z.number().int(),
  kind: z.enum(["small", "large"]),
});
const collect = async (stream) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
};

const each = {
  async text(model) {
    const whole = await generateText({ model, prompt: "Hello!", ...settings });
    assert.ok(whole.text.trim());
    assert.equal(whole.finishReason, "stop");
    assert.ok(whole.usage.inputTokens > 3 && whole.usage.outputTokens > 0);
    const stream = streamText({ model, prompt: "Hello!", ...settings });
    const parts = await collect(stream.textStream);
    assert.ok(parts.length > 2);
    assert.equal(parts.join(""), whole.text);
    assert.equal(await stream.finishReason, "stop");
    assert.deepEqual((await stream.usage).outputTokens, whole.usage.outputTokens);
    const cut = await generateText({ model, system: "Be nice.", prompt: "Hello!", ...settings, maxOutputTokens: 1 });
    assert.equal(cut.finishReason, "length");
  },
  async steps(model) {
    const { cities, loop } = weather();
    const { text, steps } = await generateText({ model, ...loop, ...settings });
    assert.deepEqual(cities, ["Paris"]);
    assert.equal(text, told);
    assert.deepEqual(steps.map((s) => s.finishReason), ["tool-calls", "stop"]);
    assert.equal(steps[0].toolCalls[0].toolCallId, steps[0].toolResults[0].toolCallId);
  },
  async streamedSteps(model) {
    const { cities, loop } = weather();
    const stream = streamText({ model, ...loop, ...settings });
    const types = new Set((await collect(stream.fullStream)).map((p) => p.type));
    for (const type of ["tool-input-delta", "tool-call", "tool-result", "text-delta"]) assert.ok(types.has(type), type);
    assert.ok(!types.has("error"));
    assert.deepEqual(cities, ["Paris"]);
    assert.equal(await stream.text, told);
  },
  async forcedTool(model) {
    for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
      const { loop } = weather();
      const { toolCalls } = await generateText({ model, ...loop, ...settings, stopWhen: stepCountIs(1), toolChoice });
      assert.equal(toolCalls[0].toolName, "get_weather");
    }
  },
  async objects(model) {
    const asked = { model, prompt: "Describe a person.", ...settings, temperature: 1, maxOutputTokens: 600 };
    schema.parse((await generateObject({ ...asked, schema })).object);
    const stream = streamObject({ ...asked, schema });
    assert.ok((await collect(stream.partialObjectStream)).length > 1);
    schema.parse(await stream.object);
    schema.parse((await generateText({ ...asked, output: Output.object({ schema }) })).output);
  },
  async errors(model) {
    await assert.rejects(generateText({ model, prompt: "Hello!", ...settings, temperature: 9 }), (e) =>
      APICallError.isInstance(e) && e.statusCode === 400 && e.message.includes("temperature"));
  },
};

const cases = {};
for (const [what, f] of Object.entries(each)) {
  for (const [api, model] of Object.entries(models)) cases[`${what}, ${api}`] = () => f(model);
}
await run(cases);
