"""Qwen 3.5 with experts in PyTorch, as transformers computes it, and the MTP head of its checkpoints.

Three layers of four are Gated DeltaNets (Yang et al., arXiv 2412.06464), the fourth attends; every layer has experts
of which a token takes a few, and one that is every token's. On a GPU the recurrence is that of the package `fla-core`.
"""

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 8192
THETA, EPS, ROTATED, INTERVAL, KERNEL = 1e7, 1e-6, 0.25, 4, 4
BALANCE, DRAFTED = 0.01, 16384  # the balance loss' weight; tokens a row that the MTP head learns from


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int  # of the recurrence
    value_heads: int
    state_dim: int
    experts: int
    chosen: int
    expert_ffn: int
    shared_ffn: int


SIZES = {"moe-hybrid": Size(384, 8, 4, 2, 128, 4, 8, 64, 64, 4, 64, 256)}


def attends(layer):
    return (layer + 1) % INTERVAL == 0


def config(size):
    kinds = ["full_attention" if attends(i) else "linear_attention" for i in range(size.layers)]
    pairs = int(size.head_dim * ROTATED) // 2
    sections = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    rope = {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": ROTATED,
            "mrope_interleaved": True, "mrope_section": sections}
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "hidden_size": size.hidden,
        "num_hidden_layers": size.layers, "layer_types": kinds, "full_attention_interval": INTERVAL,
        "num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads, "head_dim": size.head_dim,
        "linear_num_key_heads": size.key_heads, "linear_num_value_heads": size.value_heads,
        "linear_key_head_dim": size.state_dim, "linear_value_head_dim": size.state_dim,
        "linear_conv_kernel_dim": KERNEL, "num_experts": size.experts, "num_experts_per_tok": size.chosen,
        "moe_intermediate_size": size.expert_ffn, "shared_expert_intermediate_size": size.shared_ffn,
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "vocab_size": VOCABULARY,
        "rms_norm_eps": EPS, "rope_parameters": rope, "max_position_embeddings": 262144,
        "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16",
        "bos_token_id": None, "eos_token_id": 8185, "pad_token_id": 8183,
    }


def size_of(config):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
             "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "num_experts",
             "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
    return Size(*(config[name] for name in names))


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class Norm(nn.Module):
    """Its gains are stored less 1."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        return (F.rms_norm(x.float(), (x.shape[-1],), eps=EPS) * (1 + self.weight.float())).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        q, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
        self.q_proj, self.o_proj = linear(size.hidden, 2 * q), linear(q, size.hidden)  # a gate beside each head
        self.k_proj, self.v_proj = linear(size.hidden, kv), linear(size.hidden, kv)
        self.q_norm, self.k_norm = Norm(size.head_dim), Norm(size.head_dim)

    def forward(self, x, cos, sin):
        heads = lambda t, n: t.view(*x.shape[:2], n, -1)
        q, gate = heads(self.q_proj(x), self.size.heads).chunk(2, -1)
        q = self.q_norm(q).transpose(1, 2)
        k = self.k_norm(heads(self.k_proj(x), self.size.kv_heads)).transpose(1, 2)
        v = heads(self.v_proj(x), self.size.kv_heads).transpose(1, 2)

        def rotate(t):
            turned, rest = t.split((cos.shape[-1], t.shape[-1] - cos.shape[-1]), -1)
            a, b = turned.chunk(2, -1)
            return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, rest), -1).to(v.dtype)

        o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.o_proj(o.transpose(1, 2).flatten(2) * gate.flatten(2).sigmoid())


@functools.cache
def kimi_delta():
    """The kernel. Each of its parts has one of the many configurations that it would try for minutes."""
    from triton.runtime.autotuner import Autotuner

    whole = Autotuner.__init__

    def one(self, fn, names, configs, *args, **kwargs):
        whole(self, fn, names, configs[len(configs) // 2:][:1], *args, **kwargs)

    Autotuner.__init__ = one
    try:
        from fla.ops.kda import chunk_kda
    finally:
        Autotuner.__init__ = whole
    return chunk_kda


def gated_delta(q, k, v, decay, write):
    """The delta rule: `[rows, tokens, heads, size]`, decays and writes `[rows, tokens, value heads]`."""
    repeat = lambda t: t.repeat_interleave(v.shape[2] // t.shape[2], 2)
    if q.is_cuda:
        # Kimi's kernel, which decays each key channel: that of one decay a head has wrong gradients on Hopper
        # with the Triton of today's PyTorch.
        chunk_kda = kimi_delta()
        decays = decay[..., None].expand(*decay.shape, k.shape[-1]).contiguous()
        return chunk_kda(repeat(q), repeat(k), v, decays, write, use_qk_l2norm_in_kernel=True)[0]
    unit = lambda t: t.float() * torch.rsqrt(t.float().square().sum(-1, keepdim=True) + EPS)
    q, k, v = repeat(unit(q)) * q.shape[-1] ** -0.5, repeat(unit(k)), v.float()
    state, out = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1]), []
    for i in range(v.shape[1]):
        state = state * decay[:, i].float().exp()[..., None, None]
        delta = (v[:, i] - (state * k[:, i, :, :, None]).sum(-2)) * write[:, i].float()[..., None]
        state = state + k[:, i, :, :, None] * delta[:, :, None]
        out.append((state * q[:, i, :, :, None]).sum(-2))
    return torch.stack(out, 1).to(write.dtype)


class GatedNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x, gate):
        x = F.rms_norm(x.float(), (x.shape[-1],), eps=EPS) * self.weight.float()
        return (x * F.silu(gate.float())).to(gate.dtype)


class GatedDelta(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        keys, values = size.key_heads * size.state_dim, size.value_heads * size.state_dim
        self.widths = (keys, keys, values)
        self.in_proj_qkv, self.in_proj_z = linear(size.hidden, sum(self.widths)), linear(size.hidden, values)
        self.in_proj_b, self.in_proj_a = linear(size.hidden, size.value_heads), linear(size.hidden, size.value_heads)
        self.conv1d = nn.Conv1d(sum(self.widths), sum(self.widths), KERNEL, groups=sum(self.widths), bias=False)
        self.A_log = nn.Parameter(torch.empty(size.value_heads).uniform_(0.01, 16).log())
        step = torch.exp(torch.rand(size.value_heads) * math.log(100) + math.log(1e-3))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm, self.out_proj = GatedNorm(size.state_dim), linear(values, size.hidden)

    def heads(self, t):
        return t.reshape(*t.shape[:2], -1, self.size.state_dim)

    def inputs(self, x):
        """What the recurrence reads, and the gate of its output."""
        mixed = F.pad(self.in_proj_qkv(x), (0, 0, KERNEL - 1, 0))
        taps = self.conv1d.weight[:, 0].to(mixed.dtype).unbind(-1)
        mixed = sum(mixed[:, i:i + x.shape[1]] * tap for i, tap in enumerate(taps))
        q, k, v = (self.heads(t).contiguous() for t in F.silu(mixed).split(self.widths, -1))
        decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        return q, k, v, decay, self.in_proj_b(x).sigmoid(), self.heads(self.in_proj_z(x))

    def outputs(self, o, gate):
        return self.out_proj(self.norm(o, gate).flatten(2))


class Mlp(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, ffn), linear(hidden, ffn), linear(ffn, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class ExpertMaps(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(size.experts, 2 * size.expert_ffn, size.hidden))
        self.down_proj = nn.Parameter(torch.empty(size.experts, size.hidden, size.expert_ffn))

    def forward(self, x, ends):
        """Rows sorted by expert, the last of each before its `ends`."""
        product = lambda x, w: torch._grouped_mm(x.bfloat16(), w.bfloat16().transpose(-2, -1), offs=ends)
        if not x.is_cuda:
            cuts = torch.tensor([0, *ends.tolist()]).diff().tolist()
            product = lambda x, w: torch.cat([rows @ m.to(x.dtype).T for rows, m in zip(x.split(cuts), w)])
        gate, up = product(x, self.gate_up_proj).chunk(2, -1)
        return product(F.silu(gate) * up, self.down_proj)


class Experts(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.gate, self.experts = linear(size.hidden, size.experts), ExpertMaps(size)
        self.shared_expert, self.shared_expert_gate = Mlp(size.hidden, size.shared_ffn), linear(size.hidden, 1)

    def forward(self, x):
        """The result, and how unevenly tokens are spread (Switch Transformers' loss)."""
        rows, n, k = x.flatten(0, 1), self.size.experts, self.size.chosen
        share = self.gate(rows).float().softmax(-1)
        weights, chosen = share.topk(k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.zeros(n, device=x.device).scatter_add_(0, chosen.flatten(), torch.ones(len(order), device=x.device))
        y = self.experts(rows[order // k], counts.cumsum(0).to(torch.int32))
        y = (y[order.argsort()].view(-1, k, y.shape[-1]) * weights[..., None]).sum(1)
        uneven = n * (counts / counts.sum() * share.mean(0)).sum()
        shared = self.shared_expert(x) * self.shared_expert_gate(x).sigmoid()
        return shared + y.view_as(x).to(shared.dtype), uneven


class Layer(nn.Module):
    def __init__(self, size, attends):
        super().__init__()
        if attends:
            self.self_attn = Attention(size)
        else:
            self.linear_attn = GatedDelta(size)
        self.mlp = Experts(size)
        self.input_layernorm, self.post_attention_layernorm = Norm(size.hidden), Norm(size.hidden)

    def before(self, x):
        return self.linear_attn.inputs(self.input_layernorm(x))

    def after(self, x, o, gate):
        return self.with_experts(x + self.linear_attn.outputs(o, gate))

    def attending(self, x, cos, sin):
        return self.with_experts(x + self.self_attn(self.input_layernorm(x), cos, sin))

    def with_experts(self, x):
        y, uneven = self.mlp(self.post_attention_layernorm(x))
        return x + y, uneven

    def forward(self, x, angles):
        if hasattr(self, "self_attn"):
            return self.attending(x, *angles)
        *inputs, gate = self.before(x)
        return self.after(x, gated_delta(*inputs), gate)

    def compile_parts(self):
        """All but the recurrence, whose kernels need no compiler."""
        for part in ("before", "after", "attending"):
            setattr(self, part, torch.compile(getattr(self, part), dynamic=False))


class Mtp(nn.Module):
    """Predicts the token after the next one, from the last hidden state and the next token."""

    def __init__(self, size):
        super().__init__()
        self.fc = linear(2 * size.hidden, size.hidden)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(size.hidden), Norm(size.hidden)
        self.layers, self.norm = nn.ModuleList([Layer(size, True)]), Norm(size.hidden)

    def forward(self, hidden, following, angles):
        x = self.fc(torch.cat((self.pre_fc_norm_embedding(following), self.pre_fc_norm_hidden(hidden)), -1))
        x, uneven = self.layers[0](x, angles)
        return self.norm(x), uneven


class Model(nn.Module):
    """Its parameters bear the checkpoint's names, less `model.` of all but the MTP head."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.embed_tokens, self.norm = nn.Embedding(VOCABULARY, size.hidden), Norm(size.hidden)
        self.layers = nn.ModuleList(Layer(size, attends(i)) for i in range(size.layers))
        self.mtp, self.head_only = Mtp(size), False
        for name, p in self.named_parameters():
            if p.ndim >= 2 and "conv1d" not in name:
                last = "o_proj" in name or "out_proj" in name or "down_proj" in name
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * size.layers) if last else 0.02)

    def config(self):
        return config(self.size)

    @staticmethod
    def stored_name(name):
        return name if name.startswith("mtp.") else f"model.{name}"

    @staticmethod
    def is_matrix(name, p):
        """Whether Muon trains it."""
        small = ("embed", "conv1d", "mlp.gate.", "shared_expert_gate", "in_proj_a", "in_proj_b")
        return p.ndim >= 2 and not any(part in name for part in small)

    def angles(self, n, device):
        d = int(self.size.head_dim * ROTATED)
        inverse = 1.0 / THETA ** (torch.arange(0, d, 2, device=device).float() / d)
        angles = torch.outer(torch.arange(n, device=device).float(), inverse)
        angles = torch.cat((angles, angles), -1)
        return angles.cos().bfloat16(), angles.sin().bfloat16()

    def all_hidden(self, ids):
        """The last hidden states, and how uneven the layers' experts are."""
        with torch.autocast(ids.device.type, torch.bfloat16):
            angles, x = self.angles(ids.shape[1], ids.device), self.embed_tokens(ids).bfloat16()
            total = 0
            for layer in self.layers:
                x, uneven = layer(x, angles)
                total = total + uneven
            return self.norm(x), total

    def hidden(self, ids):
        return self.all_hidden(ids)[0]

    def drafted(self, hidden, ids):
        """The MTP head's hidden states: at `i`, of a token and the one after it, for the token after both."""
        with torch.autocast(ids.device.type, torch.bfloat16):
            following = self.embed_tokens(ids[:, 1:]).bfloat16()
            return self.mtp(hidden[:, :-1], following, self.angles(ids.shape[1] - 1, ids.device))

    def logits(self, hidden):
        """The head is the embedding."""
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype)).float()

    def compile_parts(self):
        for layer in (*self.layers, *self.mtp.layers):
            layer.compile_parts()
        self.loss = torch.compile(self.loss, dynamic=False)

    def loss(self, hidden, targets, weights):
        losses = F.cross_entropy(self.logits(hidden).flatten(0, 1), targets.flatten(), reduction="none")
        return (losses.view_as(weights) * weights).sum() / weights.sum()

    def forward(self, ids, targets, weights):
        """The weighted mean loss. The MTP head learns what the model itself would say, and changes nothing of it."""
        if self.head_only:
            return self.head_loss(ids)
        hidden, uneven = self.all_hidden(ids)
        loss = self.loss(hidden, targets, weights)
        rows, n = max(1, len(ids) // 4), min(ids.shape[1], DRAFTED)
        hidden = hidden[:rows, :n].detach()
        drafts, uneven_drafts = self.drafted(hidden, ids[:rows, :n])
        table = self.embed_tokens.weight.detach().to(drafts.dtype)
        said = F.linear(hidden[:, 1:], table).argmax(-1)
        drafts = F.linear(drafts, table).float().flatten(0, 1)
        return loss + F.cross_entropy(drafts, said.flatten()) + BALANCE * (uneven + uneven_drafts)

    def train_head_only(self):
        """From now on the MTP head alone learns."""
        self.head_only = True
        for name, p in self.named_parameters():
            p.requires_grad_(name.startswith("mtp."))

    def head_loss(self, ids):
        """How far the MTP head's distribution is from the model's, of all rows."""
        with torch.no_grad():
            hidden = self.hidden(ids)
            said = self.logits(hidden[:, 1:]).softmax(-1)
        drafts, uneven = self.drafted(hidden, ids)
        table = self.embed_tokens.weight.to(drafts.dtype)
        drafts = F.linear(drafts, table).float().flatten(0, 1)
        return F.cross_entropy(drafts, said.flatten(0, 1)) + BALANCE * uneven

    @torch.inference_mode()
    def accepted(self, ids):
        """Tokens that the MTP head drafts as the model would say them, and how many it drafted."""
        hidden = self.hidden(ids)
        said = self.logits(hidden)[:, 1:].argmax(-1)
        drafted = self.logits(self.drafted(hidden, ids)[0]).argmax(-1)
        return int((said == drafted).sum()), said.numel()
