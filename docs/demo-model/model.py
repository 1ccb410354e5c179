"""Qwen3 in PyTorch, as transformers computes it, and its checkpoint."""

import json
import math
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY = 384, 8, 4, 2, 128, 1152, 8192
THETA, EPS = 5e6, 1e-6
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": FFN,
    "vocab_size": VOCABULARY, "rms_norm_eps": EPS, "rope_theta": THETA,
    "rope_parameters": {"rope_type": "default", "rope_theta": THETA}, "max_position_embeddings": 262144,
    "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16",
    "bos_token_id": None, "eos_token_id": 8185, "pad_token_id": 8183,
}


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), eps=EPS).to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.q_proj, self.o_proj = linear(HIDDEN, HEADS * HEAD_DIM), linear(HEADS * HEAD_DIM, HIDDEN)
        self.k_proj, self.v_proj = linear(HIDDEN, KV_HEADS * HEAD_DIM), linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.q_norm, self.k_norm = Norm(HEAD_DIM), Norm(HEAD_DIM)

    def forward(self, x, cos, sin):
        heads = lambda t, n: t.view(*x.shape[:2], n, HEAD_DIM)
        q = self.q_norm(heads(self.q_proj(x), HEADS)).transpose(1, 2)
        k = self.k_norm(heads(self.k_proj(x), KV_HEADS)).transpose(1, 2)
        v = heads(self.v_proj(x), KV_HEADS).transpose(1, 2)

        def rotate(t):
            a, b = t.chunk(2, -1)
            return (t * cos + torch.cat((-b, a), -1) * sin).to(v.dtype)

        o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.o_proj(o.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN), Norm(HIDDEN)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Its parameters bear the checkpoint's names, less `model.`."""

    def __init__(self):
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(VOCABULARY, HIDDEN), Norm(HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = "o_proj" in name or "down_proj" in name  # these add to the residual stream
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if last else 0.02)

    def hidden(self, ids):
        with torch.autocast(ids.device.type, torch.bfloat16):
            device = ids.device
            inverse = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2, device=device).float() / HEAD_DIM)
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
    """In bf16, in files small enough for any repository."""
    shards, size = [{}], 0
    for name, p in model.state_dict().items():
        tensor = p.detach().bfloat16().cpu().contiguous()
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][f"model.{name}"] = tensor
        size += tensor.nbytes
    directory, places = Path(directory), {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / file, {"format": "pt"})
        places |= dict.fromkeys(shard, file)
    total = sum(t.nbytes for s in shards for t in s.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1))


def load(directory):
    model, tensors = Model(), {}
    for file in sorted(Path(directory).glob("model*.safetensors")):
        tensors |= load_file(file)
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in tensors.items()})
    return model.eval()
