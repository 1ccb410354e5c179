"""Random weights of published models' shapes as GGUF files, in the types of Q4_K_M, with the tokenizer of another."""

import gguf
import models
import numpy as np

QWEN3_0_6B = {"hidden": 1024, "ffn": 3072, "layers": 28, "heads": 16, "kv_heads": 8, "head": 128, "vocab": 151936}
# Recurrent layers have heads of `state` elements: `keys` of queries and keys, and `values` of values.
QWEN3_5_0_8B = {"hidden": 1024, "ffn": 3584, "layers": 24, "heads": 8, "kv_heads": 2, "head": 256, "vocab": 248320,
                "keys": 16, "values": 16, "state": 128}
# Eight of 40 layers, and of the vocabulary what a tokenizer of SmolLM2 needs.
QWEN3_5_35B_A3B = {"hidden": 2048, "ffn": 512, "layers": 8, "heads": 16, "kv_heads": 2, "head": 256, "vocab": 49152,
                   "keys": 16, "values": 32, "state": 128, "experts": 256, "used": 8}
ALL = {
    "Qwen3-0.6B's shapes, Q4_K_M": ("qwen3", QWEN3_0_6B),
    "Qwen3.5-0.8B's shapes, Q4_K_M": ("qwen35", QWEN3_5_0_8B),
    "Qwen3.5-35B-A3B's, 8 layers, Q4_K_M": ("qwen35moe", QWEN3_5_35B_A3B),
}


def files(donor):
    """The files by their names, which are made once."""
    found = {}
    for name, (architecture, sizes) in ALL.items():
        file = models.CACHE / f"{architecture}-{sizes['hidden']}-{sizes['layers']}-shapes.gguf"
        if not file.is_file():
            part = file.with_suffix(".part")
            Shapes(donor, part, architecture, sizes).write()
            part.rename(file)
        found[name] = file
    return found


def blocks(rng, kind, rows, columns):
    """Random blocks of a K-quant, with a scale that keeps the size of activations."""
    count, scale = rows * columns // 256, np.float16(0.02 / 32)
    sizes = {"Q4_K": 144, "Q6_K": 210}
    data = rng.integers(0, 256, (count, sizes[kind]), dtype=np.uint8)
    if kind == "Q4_K":
        data[:, 0:4] = np.array([scale / 8, scale / 2], np.float16).view(np.uint8)
    else:
        data[:, 192:208] = 16
        data[:, 208:210] = np.array([scale / 8], np.float16).view(np.uint8)
    return data.reshape(rows, -1)


class Shapes:
    """Writes one file."""

    def __init__(self, donor, target, architecture, sizes):
        self.sizes = sizes
        self.recurrent, self.mixture = "state" in sizes, "experts" in sizes
        self.reader, self.out = gguf.GGUFReader(donor), gguf.GGUFWriter(target, architecture)
        self.rng = np.random.default_rng(0)

    def metadata(self):
        s, out = self.sizes, self.out
        out.add_block_count(s["layers"])
        out.add_context_length(40960)
        out.add_embedding_length(s["hidden"])
        out.add_feed_forward_length(s["ffn"])
        out.add_head_count(s["heads"])
        out.add_head_count_kv(s["kv_heads"])
        out.add_key_length(s["head"])
        out.add_value_length(s["head"])
        out.add_layer_norm_rms_eps(1e-6)
        out.add_rope_freq_base(1e6)
        if self.recurrent:
            out.add_rope_dimension_count(s["head"] // 4)
            out.add_rope_dimension_sections([11, 11, 10, 0])
            out.add_ssm_conv_kernel(4)
            out.add_ssm_state_size(s["state"])
            out.add_ssm_group_count(s["keys"])
            out.add_ssm_time_step_rank(s["values"])
            out.add_ssm_inner_size(s["values"] * s["state"])
            out.add_full_attention_interval(4)
        if self.mixture:
            out.add_expert_count(s["experts"])
            out.add_expert_used_count(s["used"])
            out.add_expert_feed_forward_length(s["ffn"])
            out.add_expert_shared_feed_forward_length(s["ffn"])

    def tokenizer(self):
        vocab = self.sizes["vocab"]
        for name, field in self.reader.fields.items():
            if not name.startswith("tokenizer.") or name == "tokenizer.chat_template":
                continue
            value = field.contents()
            if name == "tokenizer.ggml.tokens":
                value += [f"[PAD{i}]" for i in range(len(value), vocab)]
            elif name == "tokenizer.ggml.token_type":
                value += [int(gguf.TokenType.UNUSED)] * (vocab - len(value))
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            self.out.add_key_value(name, value, field.types[0], inner)

    def matrix(self, name, rows, columns, kind="Q4_K", experts=0):
        data = blocks(self.rng, kind, max(experts, 1) * rows, columns)
        data = data.reshape(experts, rows, -1) if experts else data
        self.out.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])

    def floats(self, name, *shape, low=1.0, high=1.0):
        self.out.add_tensor(name, self.rng.uniform(low, high, shape).astype(np.float32))

    def attention(self, at, kind):
        s = self.sizes
        # Queries of the recurrent families have gates beside them.
        queries = s["heads"] * s["head"] * (2 if self.recurrent else 1)
        self.floats(at + "attn_q_norm.weight", s["head"])
        self.floats(at + "attn_k_norm.weight", s["head"])
        self.matrix(at + "attn_q", queries, s["hidden"])
        self.matrix(at + "attn_k", s["kv_heads"] * s["head"], s["hidden"])
        self.matrix(at + "attn_v", s["kv_heads"] * s["head"], s["hidden"], kind)
        self.matrix(at + "attn_output", s["hidden"], s["heads"] * s["head"])

    def recurrence(self, at, kind):
        s = self.sizes
        values = s["values"] * s["state"]
        channels = 2 * s["keys"] * s["state"] + values
        self.matrix(at + "attn_qkv", channels, s["hidden"])
        self.matrix(at + "attn_gate", values, s["hidden"])
        self.matrix(at + "ssm_alpha", s["values"], s["hidden"])
        self.matrix(at + "ssm_beta", s["values"], s["hidden"])
        self.matrix(at + "ssm_out", s["hidden"], values, kind)
        self.floats(at + "ssm_conv1d.weight", channels, 4, low=-1.0)
        self.floats(at + "ssm_a", s["values"], low=-16.0, high=-0.1)
        self.floats(at + "ssm_dt.bias", s["values"], low=-4.0)
        self.floats(at + "ssm_norm.weight", s["state"])

    def feed_forward(self, at, kind):
        s = self.sizes
        if not self.mixture:
            self.matrix(at + "ffn_gate", s["ffn"], s["hidden"])
            self.matrix(at + "ffn_up", s["ffn"], s["hidden"])
            self.matrix(at + "ffn_down", s["hidden"], s["ffn"], kind)
            return
        self.floats(at + "ffn_gate_inp.weight", s["experts"], s["hidden"], low=-0.05, high=0.05)
        self.floats(at + "ffn_gate_inp_shexp.weight", s["hidden"], low=-0.05, high=0.05)
        for name, experts in (("exps", s["experts"]), ("shexp", 0)):
            self.matrix(f"{at}ffn_gate_{name}", s["ffn"], s["hidden"], experts=experts)
            self.matrix(f"{at}ffn_up_{name}", s["ffn"], s["hidden"], experts=experts)
            self.matrix(f"{at}ffn_down_{name}", s["hidden"], s["ffn"], kind, experts=experts)

    def write(self):
        s = self.sizes
        self.metadata()
        self.tokenizer()
        self.matrix("token_embd", s["vocab"], s["hidden"], "Q6_K")
        self.floats("output_norm.weight", s["hidden"])
        layers = s["layers"]
        for i in range(layers):
            # Q4_K_M keeps more bits of half of the value and down projections.
            more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
            kind, at = "Q6_K" if more else "Q4_K", f"blk.{i}."
            self.floats(at + "attn_norm.weight", s["hidden"])
            self.floats(at + ("post_attention_norm.weight" if self.recurrent else "ffn_norm.weight"), s["hidden"])
            if self.recurrent and (i + 1) % 4:
                self.recurrence(at, kind)
            else:
                self.attention(at, kind)
            self.feed_forward(at, kind)
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()
