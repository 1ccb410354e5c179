// Stands between the browser and the server: keeps what was asked, and answers in the model's stead where a test wants that.
import http from "node:http";

export async function start(target) {
  const proxy = {
    /** Bodies of chat requests, the newest last. */
    asked: [],
    /** An async generator of deltas, or null for the model itself. */
    script: null,
    /** Changes the list of models. */
    models: null,
  };
  const server = http.createServer((request, response) => {
    const path = request.url.split("?")[0];
    handle(proxy, target, path, request, response).catch((error) => response.destroy(error));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  proxy.url = `http://127.0.0.1:${server.address().port}/`;
  proxy.close = () => {
    server.closeAllConnections();
    server.close();
  };
  return proxy;
}

async function handle(proxy, target, path, request, response) {
  const body = await read(request);
  if (path === "/v1/chat/completions") {
    const asked = JSON.parse(body);
    proxy.asked.push(asked);
    if (proxy.script) return answer(proxy.script, asked, response);
  }
  const headers = { ...request.headers, host: new URL(target).host };
  delete headers.origin;
  if (path === "/v1/models" && proxy.models) delete headers["accept-encoding"];
  await new Promise((resolve, reject) => {
    const forward = http.request(new URL(request.url, target), { method: request.method, headers }, (found) => {
      if (path === "/v1/models" && proxy.models && found.statusCode === 200) {
        return read(found).then((text) => {
          response.writeHead(200, { "content-type": "application/json" });
          response.end(JSON.stringify(proxy.models(JSON.parse(text))));
          resolve();
        }, reject);
      }
      response.writeHead(found.statusCode, found.headers);
      found.pipe(response);
      found.on("end", resolve);
      found.on("error", reject);
    });
    response.on("close", () => forward.destroy());
    forward.on("error", (error) => (response.destroyed ? resolve() : reject(error)));
    forward.end(body);
  });
}

async function read(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}

async function answer(script, asked, response) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (value) => response.write(`data: ${JSON.stringify({ model: "scripted", ...value })}\n\n`);
  let tokens = 0;
  let finish = "stop";
  for await (const delta of script(asked)) {
    if (response.destroyed) return;
    tokens += 1;
    if (delta.tool_calls) finish = "tool_calls";
    const usage = { prompt_tokens: 100, completion_tokens: tokens, prompt_tokens_details: { cached_tokens: 64 } };
    send({ choices: [{ index: 0, delta, finish_reason: null }], usage });
  }
  send({ choices: [{ index: 0, delta: {}, finish_reason: finish }] });
  response.end("data: [DONE]\n\n");
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A script that says a text at once. */
export const says = (text) =>
  async function* () {
    yield { content: text };
  };
