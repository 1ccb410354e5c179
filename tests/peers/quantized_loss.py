"""What quantizing SmolLM2 costs: mean log-probability of a token of tests/fixtures/heldout.txt, in nats.

    python quantized_loss.py TAPER [--windows 8] [--bits 4,3] [--methods rtn,mse,gptq] [--json FILE]

The dense form is the GGUF file of PyPI (SmolLM2-135M-Instruct in Q4_1), widened to bf16. Each conversion is scored by
Taper in f32, in windows of 1,000 tokens. --check fails where GPTQ loses more than half of what rtn does. What
`taper convert --method gptq` reads is another text, of its own. With --mlx-lm (pip install "mlx[cpu]" mlx-lm), mlx-lm
loads each conversion too, and scores the same windows.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/gguf"))

import models
from served import serve

TEXT = ROOT / "tests/fixtures/heldout.txt"
WINDOW, CHARACTERS = 1000, 3200


def loss(taper, model, windows):
    """The mean, over windows that begin anew at equal distances of the text."""
    text, found = TEXT.read_text(), []
    with serve(taper, model, "--dtype", "float32", "--kv-cache-dtype", "f32", "--max-num-seqs", "1") as server:
        for i in range(windows):
            at = i * (len(text) - CHARACTERS) // windows
            answer = server.post("/v1/completions", prompt=text[at:at + CHARACTERS], max_tokens=0, echo=True, logprobs=0)
            found += answer["choices"][0]["logprobs"]["token_logprobs"][1:WINDOW]
    return sum(found) / len(found)


def mlx_loss(model, windows):
    """The same as mlx-lm finds it."""
    import mlx.core as mx
    from mlx_lm import load

    model, tokenizer = load(str(model))
    text, found = TEXT.read_text(), []
    for i in range(windows):
        at = i * (len(text) - CHARACTERS) // windows
        ids = mx.array(tokenizer.encode(text[at:at + CHARACTERS])[:WINDOW])
        logits = model(ids[None, :-1])[0].astype(mx.float32)
        of_next = mx.take_along_axis(logits, ids[1:, None], axis=-1)[:, 0] - mx.logsumexp(logits, axis=-1)
        found += of_next.tolist()
    return sum(found) / len(found)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("taper", type=Path)
    p.add_argument("--windows", type=int, default=8)
    p.add_argument("--bits", default="4,3")
    p.add_argument("--group", default="64")
    p.add_argument("--methods", default="rtn,mse,gptq")
    p.add_argument("--flags", default="", help="more flags of `taper convert`")
    p.add_argument("--check", action="store_true")
    p.add_argument("--mlx-lm", action="store_true", help="score with mlx-lm too")
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    taper, rows = a.taper.resolve(), []
    with tempfile.TemporaryDirectory() as work:
        dense = Path(work) / "dense"
        command = [taper, "convert", models.smollm2(), dense, "--dtype", "bfloat16"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        base = loss(taper, dense, a.windows)
        print(f"dense {base:.4f}", flush=True)
        lost = {}
        for bits in a.bits.split(","):
            for method in a.methods.split(","):
                out, start = Path(work) / f"{bits}-{method}", time.monotonic()
                command = [taper, "convert", dense, out, "--bits", bits, "--group", a.group, "--method", method]
                subprocess.run(command + a.flags.split(), check=True, stdin=subprocess.DEVNULL)
                took, found = time.monotonic() - start, loss(taper, out, a.windows)
                lost[bits, method] = base - found
                row = {"bits": int(bits), "method": method, "mean": found, "lost": base - found, "seconds": took}
                print(f"{bits} bits {method}: {found:.4f}, {base - found:.4f} lost, {took:.0f} s", flush=True)
                if a.mlx_lm:
                    row["mlx_lm"] = mlx_loss(out, a.windows)
                    print(f"    mlx-lm: {row['mlx_lm']:.4f}", flush=True)
                rows.append(row)
    if a.json:
        a.json.write_text(json.dumps({"dense": base, "rows": rows}))
    if a.check:
        bad = [bits for bits in a.bits.split(",") if lost[bits, "gptq"] > lost[bits, "rtn"] / 2]
        print(f"{len(a.bits.split(',')) - len(bad)} passed, {len(bad)} failed")
        sys.exit(bool(bad))


if __name__ == "__main__":
    main()
