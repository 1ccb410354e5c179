// Images by OpenAI's Node SDK and Vercel's AI SDK against a running server of a model that sees.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";
import OpenAI from "openai";
import { args, run } from "./cases.mjs";

const baseURL = args["base-url"];
const apiKey = args["api-key"];
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const name = args.model ?? (await client.models.list()).data[0].id;
const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({ name: "taper", baseURL, apiKey });
const models = { responses: openai(name), chat: openai.chat(name), compatible: compatible(name) };

const file = (path) => readFileSync(new URL(`../fixtures/${path}`, import.meta.url));
const seen = file("vision/qwen3_vl-chat/image.png");
const other = file("images/rgb.png");
const text = "What is this?";
const asked = (model, image) => ({
  model, temperature: 0, maxOutputTokens: 16, maxRetries: 0,
  messages: [{ role: "user", content: [{ type: "image", image }, { type: "text", text }] }],
});
const direct = (image) => client.chat.completions.create({
  model: name, temperature: 0, max_tokens: 16, messages: [{
    role: "user", content: [
      { type: "image_url", image_url: { url: `data:image/png;base64,${image.toString("base64")}` } },
      { type: "text", text },
    ],
  }],
});

const cases = {
  async openai() {
    const [answer, again] = [await direct(seen), await direct(other)];
    assert.ok(answer.usage.prompt_tokens_details.image_tokens > 0);
    assert.ok(answer.choices[0].message.content);
    assert.notEqual(answer.choices[0].message.content, again.choices[0].message.content);
    await assert.rejects(direct(file("images/truncated.png")), (e) => e.status === 400 && e.code === "invalid_image");
  },
};
for (const [api, model] of Object.entries(models)) {
  cases[`images, ${api}`] = async () => {
    const whole = await generateText(asked(model, seen));
    assert.equal(whole.text, (await direct(seen)).choices[0].message.content);
    assert.notEqual(whole.text, (await generateText(asked(model, other))).text);
    const parts = [];
    for await (const part of streamText(asked(model, seen)).textStream) parts.push(part);
    assert.equal(parts.join(""), whole.text);
  };
  cases[`errors, ${api}`] = () => assert.rejects(generateText(asked(model, file("images/truncated.png"))), (e) =>
    APICallError.isInstance(e) && e.statusCode === 400 && e.message.includes("image"));
}
await run(cases);
