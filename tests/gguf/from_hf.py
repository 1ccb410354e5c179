"""A Hugging Face checkpoint as a GGUF file, by the names and the writer of gguf-py.

llama.cpp's own converter needs torch and a known tokenizer. This one needs neither: the vocabulary is made
up, and what the converter changes in the numbers is repeated here (see `convert_hf_to_gguf.py` there).
"""

import json
import math
import struct

import gguf
import numpy as np

# `model_type` of config.json, and llama.cpp's name of the architecture.
ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3", "phi3": "phi3", "smollm3": "smollm3", "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
DELTA = ("qwen35", "qwen35moe")
WIDTHS = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}


def config_of(source):
    config = json.loads((source / "config.json").read_text())
    return config.get("text_config", config)


def safetensors(path):
    """All tensors of a file, as float32."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        values = np.frombuffer(data[start + first:start + end], WIDTHS[entry["dtype"]])
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.astype(np.float32).reshape(entry["shape"])
    return tensors


def rope_section(config):
    """The rotary section, of the older or the newer form of config.json, and its kind."""
    section = config.get("rope_scaling") or config.get("rope_parameters") or {}
    section = section.get("full_attention", section)
    return section, section.get("rope_type") or section.get("type")


def llama3_divisors(section, theta, head):
    """What Llama 3.1 divides each rotary frequency by."""
    low, high = section["low_freq_factor"], section["high_freq_factor"]
    factor, original = section["factor"], section["original_max_position_embeddings"]
    divisors = []
    for i in range(0, head, 2):
        turns = original / (2 * math.pi * theta ** (i / head))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


class Writer:
    """Writes one checkpoint."""

    def __init__(self, source, target):
        self.config = config_of(source)
        self.architecture = ARCHITECTURES[self.config["model_type"]]
        self.layers = self.config["num_hidden_layers"]
        kind = getattr(gguf.MODEL_ARCH, self.architecture.upper())
        self.names = gguf.get_tensor_name_map(kind, self.layers)
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config.get("num_key_value_heads") or self.heads
        self.head = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.out = gguf.GGUFWriter(target, self.architecture)
        self.tensors = {}
        for path in sorted(source.glob("model*.safetensors")):
            self.tensors |= safetensors(path)

    def metadata(self):
        c, out = self.config, self.out
        out.add_context_length(c["max_position_embeddings"])
        out.add_embedding_length(c["hidden_size"])
        out.add_block_count(self.layers)
        if "intermediate_size" in c:
            out.add_feed_forward_length(c["intermediate_size"])
        out.add_head_count(self.heads)
        out.add_head_count_kv(self.kv_heads)
        out.add_key_length(self.head)
        out.add_value_length(self.head)
        out.add_layer_norm_rms_eps(c["rms_norm_eps"])
        if self.architecture in ("gemma3", "phi3") and c.get("sliding_window"):
            out.add_sliding_window(c["sliding_window"])
        if self.architecture in DELTA:
            self.recurrence()
        if self.architecture in ("qwen3moe", "qwen35moe"):
            out.add_expert_count(c["num_experts"])
            out.add_expert_used_count(c["num_experts_per_tok"])
            out.add_expert_feed_forward_length(c["moe_intermediate_size"])

        if self.architecture == "qwen35moe":
            out.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])

    def recurrence(self):
        c, out = self.config, self.out
        out.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        out.add_ssm_state_size(c["linear_key_head_dim"])
        out.add_ssm_group_count(c["linear_num_key_heads"])
        out.add_ssm_time_step_rank(c["linear_num_value_heads"])
        out.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        out.add_full_attention_interval(c.get("full_attention_interval", 4))
        out.add_rope_dimension_sections([*c["rope_parameters"]["mrope_section"], 0])
        if "layer_types" in c:
            recurrent = [kind == "linear_attention" for kind in c["layer_types"]]
            out.add_array(f"{self.architecture}.attention.recurrent_layers", recurrent)

    def rope(self):
        c, out = self.config, self.out
        section, kind = rope_section(c)
        parameters = c.get("rope_parameters") or {}
        parameters = parameters.get("full_attention", parameters)
        theta = c.get("rope_theta") or parameters.get("rope_theta") or 10000.0
        part = c.get("partial_rotary_factor") or section.get("partial_rotary_factor") or 1
        if self.architecture in DELTA:
            part = parameters.get("partial_rotary_factor", 0.25)
        out.add_rope_freq_base(theta)
        out.add_rope_dimension_count(int(self.head * part))
        original = c.get("original_max_position_embeddings") or section.get("original_max_position_embeddings")
        if kind == "longrope":
            scale = c["max_position_embeddings"] / original
            out.add_rope_scaling_orig_ctx_len(original)
            out.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0)
            out.add_tensor("rope_factors_long.weight", np.array(section["long_factor"], np.float32))
            out.add_tensor("rope_factors_short.weight", np.array(section["short_factor"], np.float32))
        elif kind == "llama3":
            out.add_tensor("rope_freqs.weight", llama3_divisors(section, theta, self.head))
        elif kind in ("linear", "yarn"):
            out.add_rope_scaling_type(gguf.RopeScalingType(kind))
            out.add_rope_scaling_factor(section["factor"])
            if original:
                out.add_rope_scaling_orig_ctx_len(original)

    def vocabulary(self):
        """Made up: prompts are given as tokens."""
        size = self.config["vocab_size"]
        self.out.add_tokenizer_model("gpt2")
        self.out.add_tokenizer_pre("smollm")
        self.out.add_token_list(["a", "b", "ab"] + [f"t{i}" for i in range(3, size)])
        self.out.add_token_types([1] * size)
        self.out.add_token_merges(["a b"])

    def changed(self, name, values):
        """A tensor as llama.cpp's converter has it."""
        if self.architecture in ("llama", "smollm3") and (".q_proj." in name or ".k_proj." in name):
            heads = self.heads if ".q_proj." in name else self.kv_heads
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if self.architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        if self.architecture in DELTA:
            values = self.changed_delta(name, values)
        return np.ascontiguousarray(values)

    def changed_delta(self, name, values):
        """Gains have 1 added, decays are told by what they are, and heads of values are in ggml's order."""
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            return values + 1
        if ".linear_attn." not in name:
            return values
        c = self.config
        keys, dim = c["linear_num_key_heads"], c["linear_value_head_dim"]
        each = c["linear_num_value_heads"] // keys
        before = 2 * keys * c["linear_key_head_dim"]
        if ".A_log" in name:
            values = -np.exp(values)
        if ".conv1d." in name:
            values = values.squeeze(1)

        def tiled(values, dim):
            heads = values.reshape(keys, each, dim, -1).swapaxes(0, 1)
            return heads.reshape(values.shape)

        if ".in_proj_qkv." in name or ".conv1d." in name:
            return np.concatenate([values[:before], tiled(values[before:], dim)])
        if ".in_proj_z." in name:
            return tiled(values, dim)
        if ".out_proj." in name:
            return tiled(values.T, dim).T
        return values if ".norm." in name else tiled(values, 1)

    def all_tensors(self):
        """Names of llama.cpp and values; experts are stacked."""
        experts = {}
        for name, values in sorted(self.tensors.items()):
            name = name.replace("language_model.", "")
            before, _, after = name.partition(".experts.")
            number, _, rest = after.partition(".")
            if number.isdigit():
                experts.setdefault(f"{before}.experts.{rest}", {})[int(number)] = values
            else:
                yield self.named(name), self.changed(name, values)
        for name, each in experts.items():
            yield self.named(name), np.stack([each[i] for i in range(len(each))])

    def named(self, name):
        name = name.replace(".dt_bias", ".dt_proj.bias")
        found = self.names.get_name(name, (".weight", ".bias"))
        if found is None:
            raise ValueError(f"gguf-py has no name for {name}")
        return found

    def write(self, store):
        """`store(name, values)` returns what is stored, and gguf-py's type of it or None."""
        self.metadata()
        self.rope()
        self.vocabulary()
        for name, values in self.all_tensors():
            data, kind = store(name, values)
            self.out.add_tensor(name, data, raw_dtype=kind)
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def as_floats(_name, values):
    """All tensors in F32."""
    return values, None


def write(source, target, store=as_floats):
    """Writes the checkpoint in directory `source` as the file `target`."""
    Writer(source, target).write(store)
