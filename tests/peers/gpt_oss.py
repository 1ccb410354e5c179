"""gpt-oss-20b's shapes with random weights in its published layout: memory after load, and logits beside transformers'.

    python gpt_oss.py XTASK [--device cpu] [--layers 24] [--dir DIR]

Two checkpoints are written. One of two layers, with the published sizes but for a vocabulary of 8192 tokens, gets logits
of transformers in float32 from its experts dequantized: `XTASK parity` compares ours, in f32 and (on a CPU) as they are
served, and every way of cutting the prompt. One of all layers and the whole vocabulary is loaded by `XTASK memory`,
which fails above 1.1 of the size of the file. Layers of it share their random bytes, which takes nothing from what is
measured.

XTASK is target/release/xtask, built with `--features cuda` for `--device cuda`. Needs ../fixtures/requirements.txt;
16 GB of disk, and as much memory as the model takes.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HIDDEN, INNER, EXPERTS, CHOSEN, HEADS, KV_HEADS, HEAD = 2880, 2880, 32, 4, 64, 8, 64
VOCAB, SLICE_VOCAB, SLICE_LAYERS, PROMPT = 201088, 8192, 2, 24


def config(layers, vocab):
    """As openai/gpt-oss-20b has it."""
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": vocab, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "max_position_embeddings": 131072, "attention_bias": True,
        "num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "experts_per_token": CHOSEN, "swiglu_limit": 7.0,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "sliding_window": 128, "initial_context_length": 4096,
        "tie_word_embeddings": False, "rope_theta": 150000, "torch_dtype": "bfloat16",
        "layer_types": [("sliding_attention", "full_attention")[i % 2] for i in range(layers)],
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": False,
                         "original_max_position_embeddings": 4096},
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    }


def layer(rng):
    """One layer's tensors below its name. Scales are near 2^-6: weights are about 0.04 in size."""
    normal = lambda *shape, std=0.02: torch.from_numpy(
        rng.standard_normal(shape, dtype=np.float32) * std).to(torch.bfloat16)
    codes = lambda *shape: torch.from_numpy(np.frombuffer(rng.bytes(int(np.prod(shape))), np.uint8).reshape(shape).copy())
    scales = lambda *shape: torch.from_numpy(rng.integers(119, 122, shape, np.uint8))
    groups = HIDDEN // 32
    return {
        "input_layernorm.weight": 1 + normal(HIDDEN, std=0.1), "post_attention_layernorm.weight": 1 + normal(HIDDEN, std=0.1),
        "self_attn.q_proj.weight": normal(HEADS * HEAD, HIDDEN), "self_attn.q_proj.bias": normal(HEADS * HEAD),
        "self_attn.k_proj.weight": normal(KV_HEADS * HEAD, HIDDEN), "self_attn.k_proj.bias": normal(KV_HEADS * HEAD),
        "self_attn.v_proj.weight": normal(KV_HEADS * HEAD, HIDDEN), "self_attn.v_proj.bias": normal(KV_HEADS * HEAD),
        "self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD), "self_attn.o_proj.bias": normal(HIDDEN),
        "self_attn.sinks": normal(HEADS, std=1.0),
        "mlp.router.weight": normal(EXPERTS, HIDDEN), "mlp.router.bias": normal(EXPERTS),
        "mlp.experts.gate_up_proj_blocks": codes(EXPERTS, 2 * INNER, groups, 16),
        "mlp.experts.gate_up_proj_scales": scales(EXPERTS, 2 * INNER, groups),
        "mlp.experts.gate_up_proj_bias": normal(EXPERTS, 2 * INNER, std=0.1),
        "mlp.experts.down_proj_blocks": codes(EXPERTS, HIDDEN, groups, 16),
        "mlp.experts.down_proj_scales": scales(EXPERTS, HIDDEN, groups),
        "mlp.experts.down_proj_bias": normal(EXPERTS, HIDDEN, std=0.1),
    }


def write(directory, layers, vocab, alike):
    """The checkpoint, in files of a layer each; with `alike` all layers are one."""
    directory.mkdir(parents=True, exist_ok=True)
    rng, index = np.random.default_rng(1), {}

    def save(name, tensors):
        save_file({k: v.contiguous() for k, v in tensors.items()}, directory / name, {"format": "pt"})
        index.update(dict.fromkeys(tensors, name))

    (directory / "config.json").write_text(json.dumps(config(layers, vocab), indent=2))
    tensors = layer(rng)
    for i in range(layers):
        save(f"model-layer-{i}.safetensors", {f"model.layers.{i}.{name}": x for name, x in tensors.items()})
        tensors = tensors if alike else layer(rng)
    table = lambda: torch.from_numpy(rng.standard_normal((vocab, HIDDEN), dtype=np.float32) * 0.05).to(torch.bfloat16)
    save("model-top.safetensors", {"model.embed_tokens.weight": table(), "lm_head.weight": table(),
                                   "model.norm.weight": 1 + torch.zeros(HIDDEN, dtype=torch.bfloat16)})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


@torch.inference_mode()
def expect(directory):
    """Writes what transformers gives for a prompt, with the experts' weights as floats."""
    from safetensors import safe_open

    fields = json.loads((directory / "config.json").read_text())
    del fields["quantization_config"]
    own = GptOssConfig(**fields)
    own._attn_implementation = "eager"
    state = {}
    for file in sorted(directory.glob("model-*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                if name.endswith("_scales"):
                    continue
                x = tensors.get_tensor(name)
                if name.endswith("_blocks"):
                    name = name.removesuffix("_blocks")
                    x = convert_moe_packed_tensors(x, tensors.get_tensor(f"{name}_scales"), dtype=torch.float32)
                state[name] = x.float()
    with torch.device("meta"):
        model = GptOssForCausalLM(own)
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(own)
    ids = torch.from_numpy(np.random.default_rng(2).integers(0, fields["vocab_size"], (1, PROMPT)))
    logits = model.eval()(ids, use_cache=False).logits[0].float()
    save_file({"input_ids": ids[0], "logits": logits.contiguous(), "greedy": torch.zeros(0, dtype=torch.int64)},
              directory / "expected.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xtask", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--dir", type=Path, help="where the checkpoints are written, and kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = args.dir or Path(temporary)
        slice_of = directory / "parity" / "gpt-oss-20b"
        if not (slice_of / "expected.safetensors").exists():
            write(slice_of, SLICE_LAYERS, SLICE_VOCAB, alike=False)
            expect(slice_of)
        subprocess.run([args.xtask, "parity", "--from", directory, "--device", args.device], check=True)
        whole = directory / f"whole-{args.layers}"
        if not (whole / "model.safetensors.index.json").exists():
            write(whole, args.layers, VOCAB, alike=True)
        subprocess.run([args.xtask, "memory", whole, "--device", args.device], check=True)


if __name__ == "__main__":
    main()
