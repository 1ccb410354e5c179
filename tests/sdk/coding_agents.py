"""A coding agent edits a file with a running server as its model: does its loop come to an end?

The demo model cannot program. So a proxy between the two says which tool is called, and with what:
it sets `tool_choice` and narrows the schema of the tool in each request. The rest is left as it is.
"""
import http.client
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import urllib.parse

from cases import CASES, Context, by_name, case, parser, run

HERE = pathlib.Path(__file__).parent


class Steps(http.server.ThreadingHTTPServer):
    """Sends requests on to the server, each changed by the next of the steps, and keeps both sides."""

    def __init__(self, base_url, steps):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.steps = urllib.parse.urlsplit(base_url), list(steps)
        self.asked, self.answers = [], []
        self.url = f"http://127.0.0.1:{self.server_port}{self.target.path}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(json.loads(json.dumps(request)))
        step = self.server.steps.pop(0) if self.server.steps else None
        self.forward(json.dumps(step(request) if step else request))

    def do_GET(self):
        self.forward(None)

    def forward(self, body):
        upstream = http.client.HTTPConnection(self.server.target.netloc, timeout=120)
        dropped = ("host", "content-length", "connection", "accept-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
        self.end_headers()
        whole = b""
        while piece := answer.read1():
            whole += piece
            self.wfile.write(piece)
        if self.command == "POST":
            self.server.answers.append((answer.status, whole.decode()))

    def log_message(self, *_):
        pass


def called(**arguments):
    """The schema of exactly these arguments."""
    properties = {name: {"const": value} for name, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(arguments), "additionalProperties": False}


def response_call(name, **arguments):
    def step(request):
        [tool] = [tool for tool in request["tools"] if tool.get("name") == name]
        tool["parameters"] = called(**arguments)
        return {**request, "tool_choice": {"type": "function", "name": name}}
    return step


def response_text(text):
    """An answer of this text in quotes, and no call."""
    form = {"type": "json_schema", "name": "text", "schema": {"const": text}}
    return lambda request: {**request, "tool_choice": "none", "text": {"format": form}}


@case
def codex(c):
    """Codex with the configuration that docs/http.md has for it."""
    steps = [response_call("exec_command", cmd="cat greeting.txt"),
             response_call("exec_command", cmd="sed -i s/hello/goodbye/ greeting.txt"),
             response_call("exec_command", cmd="cat greeting.txt"),
             response_text("It is done.")]
    with tempfile.TemporaryDirectory() as folder, Steps(c.args.base_url, steps) as proxy:
        home, work = pathlib.Path(folder, "home"), pathlib.Path(folder, "work")
        home.mkdir()
        work.mkdir()
        (work / "greeting.txt").write_text("hello\n")
        (home / "config.toml").write_text(f"""
            model = "{c.model}"
            model_provider = "taper"
            web_search = "disabled"

            [model_providers.taper]
            name = "taper"
            base_url = "{proxy.url}"
            env_key = "TAPER_KEY"
            wire_api = "responses"
            request_max_retries = 0
            stream_max_retries = 0
            """)
        done = subprocess.run(
            [HERE / "node_modules/.bin/codex", "exec", "--json", "--skip-git-repo-check", "--ephemeral",
             "--dangerously-bypass-approvals-and-sandbox", "-C", work, "Change hello to goodbye in greeting.txt."],
            env={**os.environ, "CODEX_HOME": str(home), "TAPER_KEY": c.args.api_key}, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=120)
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:], proxy.answers[-1:])
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["output_tokens"] > 0, events
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        commands = [item for item in items if item["type"] == "command_execution"]
        assert [(item["aggregated_output"], item["exit_code"]) for item in commands] == [
            ("hello\n", 0), ("", 0), ("goodbye\n", 0)], items
        assert items[-1]["type"] == "agent_message" and "It is done." in items[-1]["text"], items
        assert (work / "greeting.txt").read_text() == "goodbye\n"
        assert [status for status, _ in proxy.answers] == [200] * 4 and not proxy.steps, proxy.answers
        calls = [item for item in proxy.asked[-1]["input"] if item["type"] == "function_call"]
        results = [item for item in proxy.asked[-1]["input"] if item["type"] == "function_call_output"]
        assert [call["call_id"] for call in calls] == [result["call_id"] for result in results], calls
        for call, (_, answer) in zip(calls, proxy.answers):
            assert call["call_id"] in answer, "the call is the server's"
        assert "hello" in str(results[0]["output"]) and "goodbye" in str(results[2]["output"]), results


def main():
    run(by_name(CASES), Context(parser(__doc__).parse_args()))


if __name__ == "__main__":
    main()
