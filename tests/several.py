"""Runs a command against a server of three models, of which two fit the memory, and a stand-in of the hub.

    python tests/several.py target/debug/taper COMMAND...

In the command {url} and {key} stand for the address of the API and its key. The hub has org/name, and org/slow, which
takes minutes; both are the demo model."""
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

DEMO = pathlib.Path(__file__).parent.parent / "crates/server/models/demo"
NAMES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
KEY = "several"
KV_BYTES = 2 << 20
# Bytes a second.
RATES = {"org/name": 8 << 20, "org/slow": 64 << 10}


def listing(name):
    siblings = []
    for file in NAMES:
        data = (DEMO / file).read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry = {"rfilename": file, "size": len(data), "blobId": blob}
        if file.endswith(".safetensors"):
            entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        siblings.append(entry)
    return {"id": name, "sha": COMMIT, "siblings": siblings}


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/main", path)
        file = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/([^/]+)", path)
        name = (listed or file)[1] if listed or file else None
        if name not in RATES:
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if listed:
            return self.answer(200, json.dumps(listing(name)).encode())
        data = (DEMO / file[2]).read_bytes()
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not start:
            return self.answer(200, data, rate=RATES[name])
        first = int(start[1])
        head = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
        self.answer(206, data[first:], head, RATES[name])

    def answer(self, status, data, head=None, rate=None):
        self.send_response(status)
        for field, value in (head or {}).items():
            self.send_header(field, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        piece = len(data) if rate is None else max(1, rate // 10)
        try:
            for at in range(0, len(data), max(1, piece)):
                self.wfile.write(data[at:at + piece])
                if rate is not None and at + piece < len(data):
                    time.sleep(0.1)
        except OSError:
            pass  # The client has had enough.


def main(taper, command):
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    hub.daemon_threads = True
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    one = (DEMO / "model.safetensors").stat().st_size + KV_BYTES
    with tempfile.TemporaryDirectory() as models:
        for name in ["m0", "m1", "m2"]:
            shutil.copytree(DEMO, f"{models}/{name}")
        variables = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}", "RUST_LOG": "warn"}
        for name in ["HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH"]:
            variables.pop(name, None)
        server = subprocess.Popen(
            [taper, "serve", "--port", "0", "--api-key", KEY, "--models-dir", models, "--models-memory",
             str(one * 5 // 2), "--kv-cache-memory-bytes", str(KV_BYTES), "--allow-model-updates"],
            env=variables, stdout=subprocess.PIPE, text=True)
        try:
            address = next(m[1] for line in server.stdout if (m := re.match(r"serving on (http://[^,]+)", line)))
            threading.Thread(target=server.stdout.read, daemon=True).start()
            words = [word.replace("{url}", f"{address}/v1").replace("{key}", KEY) for word in command]
            done = subprocess.run(words, check=False).returncode
            page = urllib.request.urlopen(f"{address}/metrics").read().decode()
            for line in page.splitlines():
                if re.match(r"taper:(models_memory|model_(loads|unloads|downloaded))", line):
                    print(line)
            return done
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
