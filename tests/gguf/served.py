"""Taper's server as the scripts of this directory and of tests/peers use it."""

import contextlib
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


class Server:
    """A running server; `post` sends a request and returns the answer."""

    def __init__(self, port):
        self.address = f"http://127.0.0.1:{port}"

    def post(self, route, timeout=600, **body):
        request = urllib.request.Request(
            self.address + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{route}: {error.code} {error.read().decode()}") from None

    def ready(self):
        try:
            with urllib.request.urlopen(self.address + "/ready", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


@contextlib.contextmanager
def serve(taper, model, *flags, wait=120, template="none"):
    """Starts `taper serve MODEL` on a free port, and ends it. A template of None is the model's own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(taper), "serve", str(model), "--port", str(port), "--log-level", "error", *flags]
    command += ["--chat-template", template] if template else []
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            server, until = Server(port), time.monotonic() + wait
            while not server.ready():
                if process.poll() is not None or time.monotonic() > until:
                    errors.seek(0)
                    raise RuntimeError(f"{' '.join(command)}: {errors.read().decode()[-1000:]}")
                time.sleep(0.05)
            yield server
        finally:
            process.kill()
            process.wait()
