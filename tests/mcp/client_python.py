"""The official Python client of MCP against `taper longctx`: both revisions, both transports.

    pip install mcp
    python client_python.py path/to/taper
"""

import argparse
import asyncio
import pathlib
import re
import subprocess
import tempfile

import httpx2
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

TOOLS = {"search", "read", "related", "projects", "status"}
KEY = "a-key-of-the-test"


def fill(root: pathlib.Path) -> None:
    (root / "tax.py").write_text("def vat(net):\n    return net * 0.19\n\n\ndef gross(net):\n    return net + vat(net)\n")
    (root / ".env").write_text("TOKEN=okapi\n")


async def check(transport, mode: str, root: pathlib.Path) -> None:
    async with Client(transport, mode=mode) as client:
        listed = await client.list_tools()
        assert {tool.name for tool in listed.tools} == TOOLS, listed
        assert all(tool.output_schema and tool.annotations.read_only_hint for tool in listed.tools)
        name = f"okapi_{mode.replace('-', '_')}"
        (root / f"{name}.py").write_text(f"def {name}():\n    return 1\n")
        # The client checks each result against the tool's outputSchema.
        found = (await client.call_tool("search", {"query": name})).structured_content
        assert found["is_fully_fresh"] and found["chunks"][0]["symbol"] == name, found
        read = (await client.call_tool("read", {"file_path": "tax.py", "end_line": 2})).structured_content
        assert read["text"] == "def vat(net):\n    return net * 0.19\n", read
        near = (await client.call_tool("related", {"file_path": "tax.py", "line": 1})).structured_content
        assert near["chunks"][0]["symbol"] == "gross", near
        projects = (await client.call_tool("projects", {})).structured_content
        assert len(projects["projects"]) == 1, projects
        status = (await client.call_tool("status", {})).structured_content
        assert status["projects"][0]["skipped"]["denied"] == 1, status
        secret = await client.call_tool("read", {"file_path": ".env"})
        assert secret.is_error and "okapi" not in str(secret.content), secret
        print(f"  {mode}: {len(listed.tools)} tools")


async def over_http(url: str, mode: str, root: pathlib.Path) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        await check(streamable_http_client(url, http_client=http), mode, root)


async def refused(url: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    key = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient() as http:
        cases = [({}, 401), ({**key, "Host": "evil.example"}, 403), ({**key, "Origin": "http://evil.example"}, 403)]
        for headers, status in cases:
            answer = await http.post(url, json=body, headers={**accept, **headers})
            assert answer.status_code == status, (headers, answer.status_code, answer.text)
    print("  no key, a foreign host, a foreign origin: refused")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("taper", type=pathlib.Path)
    taper = str(parser.parse_args().taper.resolve())
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        fill(root)
        print("stdio")
        for mode in ["legacy", "auto", "2026-07-28"]:
            server = StdioServerParameters(command=taper, args=["longctx", "mcp", "--no-index-dir", directory])
            asyncio.run(check(server, mode, root))
        servers = {
            "taper longctx serve": ["longctx", "serve", directory, "--index-dir", directory + "/.index"],
            "taper serve": ["serve", "--enable-longctx", "--longctx-root", directory, "--longctx-index-dir", directory + "/.index"],
        }
        for what, arguments in servers.items():
            print(what)
            hosts = ["--allowed-hosts", "localhost"]
            command = [taper, *arguments, "--port", "0", "--api-key", KEY, *hosts]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                address = next(m[1] for line in process.stdout if (m := re.search(r"serving on (http://[0-9.:]+)", line)))
                for mode in ["legacy", "auto", "2026-07-28"]:
                    asyncio.run(over_http(address + "/mcp", mode, root))
                asyncio.run(refused(address + "/mcp"))
            finally:
                process.terminate()
                process.wait(20)
    print("all passed")


if __name__ == "__main__":
    main()
