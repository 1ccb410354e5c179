"""Quantizes the language model of a checkpoint that vl.py made, and leaves its tower as it is.

    python quantize_vl.py VL OUT --bits 6

`taper convert` takes no models with towers yet. Needs MLX, which runs on Linux too: pip install "mlx[cpu]"."""
import argparse
import json
import shutil
from pathlib import Path

import mlx.core as mx

GROUP = 64


def quantized(weights, bits):
    out = {}
    for name, value in weights.items():
        if "language_model" not in name or value.ndim != 2 or value.shape[1] % GROUP:
            out[name] = value
            continue
        base = name.removesuffix(".weight")
        out[name], out[f"{base}.scales"], out[f"{base}.biases"] = mx.quantize(value, GROUP, bits)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--bits", type=int, default=6)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    weights = {}
    for file in sorted(a.model.glob("*.safetensors")):
        weights.update(mx.load(str(file)))
    mx.save_safetensors(str(a.out / "model.safetensors"), quantized(weights, a.bits), {"format": "mlx"})
    config = json.loads((a.model / "config.json").read_text())
    config["quantization"] = {"group_size": GROUP, "bits": a.bits}
    (a.out / "config.json").write_text(json.dumps(config, indent=2))
    for file in ["preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]:
        shutil.copy(a.model / file, a.out)


if __name__ == "__main__":
    main()
