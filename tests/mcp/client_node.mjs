// The official TypeScript client of MCP against `taper longctx mcp`.
//
//     npm install @modelcontextprotocol/sdk
//     node client_node.mjs path/to/taper
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { spawn } from "node:child_process";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const taper = resolve(process.argv[2]);
const root = mkdtempSync(join(tmpdir(), "taper-mcp-"));
writeFileSync(join(root, "tax.py"), "def vat(net):\n    return net * 0.19\n");

async function check(transport, what) {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(transport);
  const { tools } = await client.listTools();
  assert.deepEqual(tools.map((t) => t.name).sort(), ["projects", "read", "related", "search", "status"]);
  // The client checks each result against the tool's outputSchema.
  const found = await client.callTool({ name: "search", arguments: { query: "vat" } });
  assert.equal(found.structuredContent.chunks[0].file_path, "tax.py");
  for (const name of ["projects", "status"]) {
    assert.ok(!(await client.callTool({ name, arguments: {} })).isError);
  }
  const secret = await client.callTool({ name: "read", arguments: { file_path: "/etc/passwd" } });
  assert.ok(secret.isError);
  await client.close();
  console.log(`${what}: passed`);
}

try {
  const args = ["longctx", "mcp", "--no-index-dir", root];
  await check(new StdioClientTransport({ command: taper, args }), "stdio");
  const server = spawn(taper, ["longctx", "serve", "--no-index-dir", "--port", "0", root]);
  try {
    const address = await new Promise((found) => {
      let out = "";
      server.stdout.on("data", (text) => {
        out += text;
        const match = out.match(/serving on (http:\/\/[0-9.:]+)/);
        if (match) found(match[1]);
      });
    });
    await check(new StreamableHTTPClientTransport(new URL(`${address}/mcp`)), "HTTP");
  } finally {
    server.kill();
  }
} finally {
  rmSync(root, { recursive: true });
}
