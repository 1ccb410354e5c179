#!/usr/bin/env python3
"""What a server does under load and under bad requests, measured from outside.

    python3 tests/service/measure.py [--taper target/release/taper] [bodies|fair|sequences|idle ...]

bodies     eight bodies of 30 MB at once, 8 MB of stop strings with n = 32, 10 million stop tokens:
           status, seconds and growth of memory, and how long a neighbour's 300 tokens take
           meanwhile, beside how long while the same bodies go to a program that drops them: the
           clients need this machine's processors, too
fair       a one-token prompt behind six prompts of 6,000 tokens: seconds to its answer
sequences  how many of 160 clients of 500 + 500 tokens run at once in 256 MiB of KV cache, by cache type:
           the median over the time in which others wait
idle       resident memory after the start, after load, and after a minute without requests

It starts a server with the demo model for each, on a port of its own. It needs only Python's
standard library and Linux (/proc). It prints figures and judges nothing."""

import argparse
import concurrent.futures as futures
import contextlib
import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time

VOCABULARY = 8000


class Address:
    """What listens on a port of this machine."""

    def __init__(self, port):
        self.port = port

    def get(self, path):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read().decode()

    def post(self, path, body, timeout=300):
        """Status and text. A refusal may come before the whole body is sent."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link.request("POST", path, data, {"Content-Type": "application/json"})
        try:
            answer = link.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)


class Server(Address):
    """A running server and what the system and its metrics say of it."""

    def __init__(self, taper, *args):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            super().__init__(free.getsockname()[1])
        command = [taper, "serve", "--port", str(self.port), *args]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.time() + 60
        while time.time() < until and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/ready")[0] == 200:
                    return
            time.sleep(0.05)
        raise SystemExit(f"the server did not start: {' '.join(command)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def resident(self, field="VmRSS"):
        """Megabytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith(field))
        return int(line.split()[1]) / 1024

    def metric(self, name):
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        return float("nan")


def prompt(tokens, seed):
    """Tokens that share no prefix with those of another seed."""
    draw = random.Random(seed)
    return [draw.randrange(300, VOCABULARY) for _ in range(tokens)]


def complete(server, tokens, new, seed=0, **more):
    body = {"prompt": prompt(tokens, seed), "max_tokens": new, "temperature": 0, "ignore_eos": True}
    start = time.time()
    status, text = server.post("/v1/completions", body | more)
    return status, time.time() - start, text


def bodies(taper):
    deep = b"[" * 15_000_000 + b"]" * 15_000_000
    kinds = {
        "30 MB of empty messages to /tokenize": (
            "/tokenize", b'{"messages":[' + b",".join([b"{}"] * 10_000_000) + b"]}"),
        "30 MB of text in a chat": ("/v1/chat/completions", json.dumps(
            {"messages": [{"role": "user", "content": "word " * 6_000_000}]}).encode()),
        "30 MB of brackets": ("/v1/chat/completions", b'{"messages":' + deep + b"}"),
        "30 MB of numbers to /detokenize": ("/detokenize", b'{"tokens":[' + b",".join(
            [b"7"] * 15_000_000) + b"]}"),
        "8 MB of stop strings, n = 32": ("/v1/completions", json.dumps(
            {"prompt": "Hi", "n": 32, "max_tokens": 4, "stop": ["a" * 8_000_000]}).encode()),
        "10 million stop tokens": ("/v1/completions", b'{"prompt":"Hi","n":16,"max_tokens":40,'
                                   b'"min_tokens":40,"stop_token_ids":[' + b",".join(
                                       [b"7"] * 10_000_000) + b"]}"),
    }
    sink = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
    elsewhere = Address(int(sink.stdout.readline()))
    for name, (path, body) in kinds.items():
        with Server(taper) as server:
            complete(server, 10, 300)
            alone = middle(complete(server, 10, 300, seed)[1] for seed in range(5))
            before = server.resident()
            rounds = [attack(server, server, path, body) for _ in range(5)]
            peak = server.resident("VmHWM")
            control = [attack(server, elsewhere, path, body)[1] for _ in range(5)]
            answers = [answer for answers, _ in rounds for answer in answers]
            slow, other = middle(slowest for _, slowest in rounds), middle(control)
            statuses = sorted({status for status, _ in answers})
            print(f"bodies: 8 x {name}: status {statuses}, slowest {max(t for _, t in answers):.2f} s, "
                  f"memory {before:.0f} -> {peak:.0f} MB (+{peak - before:.0f}), neighbour "
                  f"{slow / alone:.2f} times its time alone, {other / alone:.2f} with the bodies "
                  f"elsewhere, so {slow / other:.2f}", flush=True)
    sink.kill()


# Answers 413 when a head has come, as the server does, and drops the rest.
SINK = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
def answer(link):
    with link:
        link.recv(1 << 16)
        link.sendall(b"HTTP/1.1 413 Too Large\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""


def middle(values):
    values = sorted(values)
    return values[len(values) // 2]


def attack(server, target, path, body):
    """Eight clients send a body to the target: their answers, and the slowest of a neighbour's."""
    times, done = [], threading.Event()

    def neighbour():
        while not done.is_set():
            times.append(complete(server, 10, 300, len(times))[1])

    def send(_):
        start = time.time()
        return target.post(path, body)[0], time.time() - start

    other = threading.Thread(target=neighbour)
    other.start()
    with futures.ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(send, range(8)))
    done.set()
    other.join()
    return answers, max(times)


def fair(taper):
    with Server(taper) as server:
        complete(server, 1, 1)
        alone = complete(server, 1, 1, 7)[1]
        with futures.ThreadPoolExecutor(6) as clients:
            long = [clients.submit(complete, server, 6000, 1, 100 + i) for i in range(6)]
            time.sleep(0.3)
            status, behind, _ = complete(server, 1, 1, 9)
            rest = [job.result()[1] for job in long]
        print(f"fair: a one-token prompt alone {alone:.3f} s, behind six of 6,000 tokens {behind:.3f} s "
              f"(status {status}); the six took {min(rest):.2f} to {max(rest):.2f} s", flush=True)


def sequences(taper):
    median = {}
    for kind in ("f16", "taper4", "turbo4"):
        args = ("--kv-cache-memory-bytes", str(256 << 20), "--kv-cache-dtype", kind)
        with Server(taper, *args) as server:
            with futures.ThreadPoolExecutor(160) as clients:
                jobs = [clients.submit(complete, server, 500, 500, seed) for seed in range(160)]
                running, usage = [0], 0
                while not all(job.done() for job in jobs):
                    if server.metric("vllm:num_requests_waiting"):
                        running.append(server.metric("vllm:num_requests_running"))
                    usage = max(usage, server.metric("vllm:kv_cache_usage_perc"))
                    time.sleep(0.05)
                statuses = sorted({job.result()[0] for job in jobs})
            median[kind] = middle(running)
            gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting",
                      "vllm:kv_cache_usage_perc", "taper:kv_cache_used_bytes")
            left = {name: server.metric(name) for name in gauges}
            print(f"sequences: {kind}: {median[kind]:.0f} at once ({median[kind] / median['f16']:.2f} of f16), usage up "
                  f"to {usage:.2f}, preemptions {server.metric('vllm:num_preemptions_total'):.0f}, status "
                  f"{statuses}; afterwards {left}", flush=True)


def idle(taper):
    with Server(taper) as server:
        complete(server, 10, 10)
        start = server.resident()
        with futures.ThreadPoolExecutor(16) as clients:
            list(clients.map(lambda seed: complete(server, 6000, 20, seed), range(32)))
        loaded = server.resident()
        time.sleep(75)
        after = server.resident()
        print(f"idle: resident after the start {start:.0f} MB, after load {loaded:.0f} MB, after 75 idle "
              f"seconds {after:.0f} MB ({after / start:.2f} of the start)", flush=True)


def main():
    parts = {f.__name__: f for f in (bodies, fair, sequences, idle)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taper", default="target/release/taper", help="the program")
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(parts)}; all by default")
    options = parser.parse_args()
    for name in options.parts or parts:
        if name not in parts:
            parser.error(f"there is no part {name!r}")
        parts[name](options.taper)


if __name__ == "__main__":
    main()
