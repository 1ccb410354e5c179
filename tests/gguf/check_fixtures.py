"""Compares what Taper makes of a GGUF file with what it makes of the same weights in other files.

    python check_fixtures.py TAPER

1. Every checkpoint of tests/fixtures/parity that GGUF can express is written as a GGUF file, in floats. The
   log-probabilities of a prompt and of its continuation must be those of the safetensors files.
2. A checkpoint is written in every type of blocks, and its values, as gguf-py reads these blocks, in F32. Both
   must have the same log-probabilities.
3. `taper convert` makes a directory of every one of these files. It must have the log-probabilities of the
   file; with `--dtype float32`, those of the values that gguf-py reads from the blocks.

Everything runs with `--dtype float32 --kv-cache-dtype f32`, so that nothing else is rounded. `max` is the
largest difference of a log-probability. Needs requirements.txt beside this file.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

import from_hf
from served import serve

ROOT = Path(__file__).resolve().parents[2]
PARITY = ROOT / "tests/fixtures/parity"
# Any tokenizer does: prompts are given as tokens.
TOKENIZER = ROOT / "crates/server/models/demo/tokenizer.json"

# What GGUF cannot say, and why.
LEFT_OUT = {
    "gemma3-mixed-layers-f16": "which layers slide is fixed",
    "mistral-window-bf16": "llama has no window",
    "qwen2-window-f16": "qwen2 has no window",
    "smollm3-window-f16": "smollm3 has no window",
    "qwen3-moe-mixed-layers": "qwen3moe has experts in every layer",
}
# Settings that llama.cpp fixes for an architecture; the checkpoint is run with these.
FIXED = {
    "gemma3-bf16": {"query_pre_attn_scalar": 32, "sliding_window_pattern": 6},
    "smollm3-bf16": {"no_rope_layers": [1, 1, 1, 0]},
}
# Files that hold a rounded number: divisors of frequencies (llama3), the factor of attention (longrope), decays.
ROUNDED = {"qwen3_5-text-f16": 1e-4, "qwen3_5-moe-text-f16": 1e-4, "llama-llama3-bf16": 5e-5, "phi3-longrope-long-bf16": 1e-4, "phi3-longrope-short-bf16": 1e-4}

# Bounds of part 2. Scales of K-quants are rounded to halves; Q2_K, Q3_K and Q6_K get codes of 8 bits.
BLOCKS = {
    Type.Q4_0: 0, Type.Q4_1: 0, Type.Q5_0: 0, Type.Q5_1: 0, Type.Q8_0: 0, Type.Q4_K: 1e-2, Type.Q5_K: 3e-2,
    Type.Q6_K: 2e-1, Type.Q2_K: 2e-1, Type.Q3_K: 2e-1,
}
# The same for a recurrence, in which roundings grow.
DELTA_BLOCKS = {Type.Q4_0: 0, Type.Q8_0: 0, Type.Q4_K: 2e-1}
# K-quants: where their halves stand, how many there are, their size, and dmin over d.
K_QUANTS = {
    Type.Q2_K: (80, 2, 3e-3, 1.5), Type.Q3_K: (108, 1, 8e-4, 1), Type.Q4_K: (0, 2, 3e-4, 7),
    Type.Q5_K: (0, 2, 3e-4, 15), Type.Q6_K: (208, 1, 2e-5, 1),
}


def scores(taper, model, vocabulary):
    """Log-probabilities of a prompt of random tokens, and of 20 more that are chosen greedily."""
    draw = random.Random(1)
    prompt = [draw.randrange(vocabulary) for _ in range(60)]
    with serve(taper, model, "--dtype", "float32", "--kv-cache-dtype", "f32") as server:
        answer = server.post("/v1/completions", prompt=prompt, max_tokens=20, temperature=0, echo=True,
                             logprobs=0, ignore_eos=True)
    found = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
    assert len(found) == 79, f"{len(found)} log-probabilities"
    return np.array(found)


def converted(taper, file, *flags):
    """The directory that `taper convert` makes of a file."""
    target = file.with_name(f"{file.stem}-mlx{''.join(flags)}")
    command = [taper, "convert", file, target, "--to", "mlx", *flags]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return target


class Tally:
    passed = failed = 0

    def row(self, name, a, b, bound):
        largest = float(np.abs(a - b).max())
        good = largest <= bound
        self.passed, self.failed = self.passed + good, self.failed + (not good)
        verdict = "equal" if largest == 0 else f"max {largest:.1e}, bound {bound:.0e}"
        print(f"{name:<40} {verdict}{'' if good else '  FAILED'}", flush=True)


def checkpoint(source, target):
    """A copy of a fixture with a tokenizer, and with what llama.cpp fixes."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    (config.get("text_config") or config).update(FIXED.get(source.name, {}))
    (target / "config.json").write_text(json.dumps(config))
    shutil.copy(TOKENIZER, target)


def check_fixtures(taper, work, tally):
    for source in sorted(PARITY.iterdir()):
        config = from_hf.config_of(source)
        known = config["model_type"] in from_hf.ARCHITECTURES
        outer = json.loads((source / "config.json").read_text())
        if "text_config" in outer:
            continue  # gguf-py has no names for what is beside a language model
        quantized = "quantization" in config or "quantization_config" in config
        if quantized or not known or source.name in LEFT_OUT:
            continue
        copy, file = work / source.name, work / f"{source.name}.gguf"
        checkpoint(source, copy)
        from_hf.write(copy, file)
        models = (copy, file, converted(taper, file))
        a, b, c = (scores(taper, model, config["vocab_size"]) for model in models)
        tally.row(source.name, a, b, ROUNDED.get(source.name, 0))
        tally.row(f"{source.name}, converted", b, c, 0)


def wide_checkpoint(source, target, more):
    """A model whose rows are whole blocks of 256."""
    shutil.copytree(PARITY / source, target)
    config = json.loads((target / "config.json").read_text())
    config |= {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32, "num_attention_heads": 8,
               "num_key_value_heads": 2, "num_hidden_layers": 2, "tie_word_embeddings": False} | more
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors").unlink()
    shutil.copy(TOKENIZER, target)


def wide_qwen3(target):
    wide_checkpoint("qwen3-bf16", target, {})
    shapes = {"model.embed_tokens": (320, 256), "lm_head": (320, 256), "model.norm": (256,)}
    for i in range(2):
        shapes |= layer(i, ATTENTION)
    return drawn(shapes)


def wide_qwen3_5(target):
    """Two heads of values for each of keys, and one of all blocks of a row."""
    wide_checkpoint("qwen3_5-text-f16", target, {
        "linear_key_head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "full_attention"]})
    shapes = {"model.embed_tokens": (320, 256), "lm_head": (320, 256), "model.norm": (256,)}
    shapes |= layer(0, {f"linear_attn.{name}": shape for name, shape in {
        "in_proj_qkv": (512, 256), "in_proj_z": (256, 256), "in_proj_b": (4, 256), "in_proj_a": (4, 256),
        "conv1d": (512, 1, 4), "norm": (64,), "out_proj": (256, 256)}.items()})
    shapes |= layer(1, ATTENTION | {"self_attn.q_proj": (512, 256)})
    draw = np.random.default_rng(3)
    decays = {f"model.layers.0.linear_attn.{name}": draw.uniform(0, 1, 4).astype(np.float32)
              for name in ("A_log", "dt_bias")}
    return drawn(shapes) | decays


ATTENTION = {"self_attn.q_norm": (32,), "self_attn.k_norm": (32,), "self_attn.q_proj": (256, 256),
             "self_attn.k_proj": (64, 256), "self_attn.v_proj": (64, 256), "self_attn.o_proj": (256, 256)}


def layer(i, own):
    shapes = {"input_layernorm": (256,), "post_attention_layernorm": (256,)} | own | {
        "mlp.gate_proj": (512, 256), "mlp.up_proj": (512, 256), "mlp.down_proj": (256, 512)}
    return {f"model.layers.{i}.{name}": shape for name, shape in shapes.items()}


def drawn(shapes):
    draw = np.random.default_rng(1)
    return {f"{name}.weight": (draw.standard_normal(shape) / 16 if len(shape) > 1 else
                               1 + draw.standard_normal(shape) / 8).astype(np.float32)
            for name, shape in shapes.items()}


def random_blocks(kind, shape, draw):
    """K-quants with random codes and scales, of about the size that weights have."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (shape[0], shape[1] // 256, size), np.uint8)
    at, count, size, ratio = K_QUANTS[kind]
    halves = draw.uniform(0.5 * size, size, (*blocks.shape[:2], count)).astype(np.float16)
    # The minimum takes away about half of the largest code.
    halves[..., 1:] *= np.float16(ratio)
    blocks[..., at:at + 2 * count] = halves.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def check_blocks(taper, work, tally, make, bounds):
    model = work / make.__name__
    tensors = make(model)
    for kind, bound in bounds.items():
        draw, stored = np.random.default_rng(2), {}

        def quantized(name, values):
            if values.ndim < 2 or values.shape[1] % 256:
                return values, None
            stored[name] = (random_blocks(kind, values.shape, draw) if kind in K_QUANTS else
                            gguf.quants.quantize(values, kind))
            return stored[name], kind

        def widened(name, values):
            return (gguf.quants.dequantize(stored[name], kind) if name in stored else values), None

        found = []
        for way in (quantized, widened):
            file = work / f"{make.__name__}-{kind.name}-{way.__name__}.gguf"
            writer = from_hf.Writer(model, file)
            writer.tensors = tensors
            writer.write(way)
            found.append(scores(taper, file, 320))
            if way is quantized:
                kept, floats = converted(taper, file), converted(taper, file, "--dtype", "float32")
        name = f"{make.__name__} {kind.name}"
        tally.row(name, *found, bound)
        tally.row(f"{name}, converted", found[0], scores(taper, kept, 320), 0)
        tally.row(f"{name}, to floats", found[1], scores(taper, floats, 320), 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taper", type=Path, help="the program")
    taper = parser.parse_args().taper.resolve()
    tally = Tally()
    with tempfile.TemporaryDirectory() as work:
        check_fixtures(taper, Path(work), tally)
        check_blocks(taper, Path(work), tally, wide_qwen3, BLOCKS)
        check_blocks(taper, Path(work), tally, wide_qwen3_5, DELTA_BLOCKS)
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(tally.failed > 0)


if __name__ == "__main__":
    main()
