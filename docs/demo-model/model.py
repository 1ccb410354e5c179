"""Qwen3 in PyTorch, as transformers computes it, and its checkpoint."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import hybrid
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

VOCABULARY = 8192
THETA, EPS = 5e6, 1e-6


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int


# The demo model, and one that drafts for it.
SIZES = {"demo": Size(384, 8, 4, 2, 128, 1152), "draft": Size(160, 4, 4, 2, 64, 480)}


def config(size):
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": size.hidden,
        "num_hidden_layers": size.layers, "num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim, "intermediate_size": size.ffn, "vocab_size": VOCABULARY, "rms_norm_eps": EPS,
        "rope_theta": THETA, "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "max_position_embeddings": 262144, "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
        "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": 8185, "pad_token_id": 8183,
    }


def size_of(config):
    return Size(config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"],
                config["num_key_value_heads"], config["head_dim"], config["intermediate_size"])


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), eps=EPS).to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        q, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
        self.q_proj, self.o_proj = linear(size.hidden, q), linear(q, size.hidden)
        self.k_proj, self.v_proj = linear(size.hidden, kv), linear(size.hidden, kv)
        self.q_norm, self.k_norm = Norm(size.head_dim), Norm(size.head_dim)

    def forward(self, x, cos, sin):
        heads = lambda t, n: t.view(*x.shape[:2], n, self.size.head_dim)
        q = self.q_norm(heads(self.q_proj(x), self.size.heads)).transpose(1, 2)
        k = self.k_norm(heads(self.k_proj(x), self.size.kv_heads)).transpose(1, 2)
        v = heads(self.v_proj(x), self.size.kv_heads).transpose(1, 2)

        def rotate(t):
            a, b = t.chunk(2, -1)
            return (t * cos + torch.cat((-b, a), -1) * sin).to(v.dtype)

        o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.o_proj(o.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, size):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.gate_proj, self.up_proj = linear(size.hidden, size.ffn), linear(size.hidden, size.ffn)
        self.down_proj = linear(size.ffn, size.hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.self_attn, self.mlp = Attention(size), Mlp(size)
        self.input_layernorm, self.post_attention_layernorm = Norm(size.hidden), Norm(size.hidden)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Its parameters bear the checkpoint's names, less `model.`."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.embed_tokens, self.norm = nn.Embedding(VOCABULARY, size.hidden), Norm(size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = "o_proj" in name or "down_proj" in name  # these add to the residual stream
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * size.layers) if last else 0.02)

    def config(self):
        return config(self.size)

    def compile_parts(self):
        self.compile(dynamic=False)

    @staticmethod
    def stored_name(name):
        return f"model.{name}"

    @staticmethod
    def is_matrix(name, p):
        """Whether Muon trains it."""
        return p.ndim == 2 and "embed" not in name

    def hidden(self, ids):
        with torch.autocast(ids.device.type, torch.bfloat16):
            device = ids.device
            d = self.size.head_dim
            inverse = 1.0 / THETA ** (torch.arange(0, d, 2, device=device).float() / d)
            angles = torch.outer(torch.arange(ids.shape[1], device=device).float(), inverse)
            angles = torch.cat((angles, angles), -1)
            cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
            x = self.embed_tokens(ids).bfloat16()
            for layer in self.layers:
                x = layer(x, cos, sin)
            return self.norm(x)

    def logits(self, hidden):
        """The head is the embedding."""
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype)).float()

    def forward(self, ids, targets, weights):
        """The weighted mean loss."""
        losses = F.cross_entropy(self.logits(self.hidden(ids)).flatten(0, 1), targets.flatten(), reduction="none")
        return (losses.view_as(weights) * weights).sum() / weights.sum()


@torch.inference_mode()
def greedy(model, ids, n, stop):
    """At most n tokens, without a cache."""
    ids, start = list(ids), len(ids)
    device = model.norm.weight.device
    for _ in range(n):
        token = int(model.logits(model.hidden(torch.tensor([ids], device=device))[:, -1]).argmax())
        if token == stop:
            break
        ids.append(token)
    return ids[start:]


def save(model, directory, shard_bytes=14_000_000):
    """In bf16, rates of decay in f32, in files small enough for any repository."""
    shards, size = [{}], 0
    for name, p in model.state_dict().items():
        decay = "A_log" in name or "dt_bias" in name
        tensor = p.detach().to(torch.float32 if decay else torch.bfloat16).cpu().contiguous()
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][model.stored_name(name)] = tensor
        size += tensor.nbytes
    directory, places = Path(directory), {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / file, {"format": "pt"})
        places |= dict.fromkeys(shard, file)
    total = sum(t.nbytes for s in shards for t in s.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (directory / "config.json").write_text(json.dumps(model.config(), indent=1))


def load(directory):
    config = json.loads((Path(directory) / "config.json").read_text())
    family = hybrid if config["model_type"] == "qwen3_5_moe_text" else sys.modules[__name__]
    model = family.Model(family.size_of(config))
    tensors = {}
    for file in sorted(Path(directory).glob("model*.safetensors")):
        tensors |= load_file(file)
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in tensors.items()})
    return model.eval()


def new(size):
    """An untrained one of a size that has a name."""
    return hybrid.Model(hybrid.SIZES[size]) if size in hybrid.SIZES else Model(SIZES[size])
