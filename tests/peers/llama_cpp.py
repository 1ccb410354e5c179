"""llama.cpp's server, of the prebuilt package xllamacpp, and what the comparisons ask it."""

import contextlib
import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gguf"))

from served import Server

# The server in a process of its own: it prints its address, and ends with its standard input.
PEER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, threads, sequences = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.n_parallel, params.n_ctx, params.n_gpu_layers = sequences, sequences * 1024 + 64, 0
params.n_batch, params.n_ubatch = 2048, 512
params.cache_prompt, params.cont_batching, params.warmup = sequences == 1, True, True
server = xllamacpp.Server(params)
print("at", server.listening_address, flush=True)
sys.stdin.read()
"""

# Candidates of a step whose log-probabilities are asked for, and of a greedy one that are kept.
WANTED, SHOWN = 1000, 20


def version():
    return importlib.metadata.version("xllamacpp")


@contextlib.contextmanager
def llama_cpp(model, threads, sequences):
    """A server of so many sequences; of one, it keeps what its last request evaluated."""
    command = [sys.executable, "-c", PEER, str(model), str(threads), str(sequences)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            address = next((line.split()[1] for line in process.stdout if line.startswith("at ")), None)
            if address is None:
                errors.seek(0)
                raise RuntimeError(f"llama.cpp: {errors.read().decode()[-1000:]}")
            server = Server(0)
            server.address = address
            yield server
        finally:
            process.kill()
            process.wait()


def tokenize(server, text):
    """Tokens of a text, after the one that begins every text, if there is one."""
    return server.post("/tokenize", content=text, add_special=True, parse_special=False)["tokens"]


def steps(server, tokens, count, wanted):
    """Greedy steps after these tokens: for each, ids, texts and log-probabilities of the likeliest tokens."""
    found = server.post("/completion", prompt=tokens, n_predict=count, n_probs=wanted, temperature=0, ignore_eos=True,
                        cache_prompt=True, samplers=["temperature"])["completion_probabilities"]
    return [[(t["id"], t["token"], t["logprob"]) for t in step["top_logprobs"]] for step in found]


def log_probability(server, before, token):
    """The log-probability of a token after others."""
    for wanted in (WANTED, 1 << 20):
        (step,) = steps(server, before, 1, wanted)
        found = next((logprob for id_, _, logprob in step if id_ == token), None)
        if found is not None:
            return found
    raise RuntimeError(f"llama.cpp does not know token {token}")


def score(server, text, size, windows):
    """Tokens of each window of a text, and the log-probability of each but the first."""
    begin = tokenize(server, "")
    tokens = tokenize(server, text)[len(begin):]
    found = []
    for i in range(windows):
        window = begin + tokens[i * size:(i + 1) * size]
        assert len(window) == len(begin) + size, "the text is too short"
        logprobs = [log_probability(server, window[:at], window[at]) for at in range(1, len(window))]
        found.append({"tokens": window, "logprobs": logprobs})
    return found


def follow(server, prompt, count):
    """Greedy tokens after a prompt, and the log-probabilities of all that any engine may choose."""
    tokens = tokenize(server, prompt)
    found = [[(text, logprob) for _, text, logprob in step] for step in steps(server, tokens, count, SHOWN)]
    return {"tokens": tokens, "steps": found}
