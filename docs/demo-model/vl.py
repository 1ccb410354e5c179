"""Teaches the demo model to see, on one GPU in some eight minutes:

    vl.py --demo ../../crates/server/models/demo --out VL --minutes 7

A small vision tower of Qwen 3 VL is trained from nothing before the demo model's own weights, on images of `scenes.py`
that are made as they are needed; chats of `tasks.py` between them keep what the model could. `--out` becomes a
checkpoint of `Qwen3VLForConditionalGeneration` but for generation_config.json, which is the demo model's.
"""

import argparse
import json
import math
import multiprocessing as mp
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import model as qwen3
import numpy as np
import scenes
import tasks
import torch
import torch.nn as nn
import torch.nn.functional as F
from data import Data
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer
from train import Muon

VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]  # the ids after the demo model's
START, END, IMAGE, VIDEO = (qwen3.VOCABULARY + i for i in range(4))
PATCH, MERGE, BATCH = 16, 2, 1024
LENGTH, ANSWERS = 80, 24  # a row's tokens, and most of them that are learned
TEXT_ROWS, TEXT_LENGTH, TEXT_WEIGHT = 24, 768, 0.25
SECTIONS = [24, 20, 20]  # frequencies of time, height and width
SHARD = 16_700_000  # bytes of a file, so that there are three
MATRIX_RATE, OTHER_RATE, LANGUAGE_FACTOR = 0.02, 2e-3, 0.2


@dataclass(frozen=True)
class TowerSize:
    hidden: int = 192
    depth: int = 6
    heads: int = 3
    ffn: int = 640
    side: int = 10  # of the grid of learned positions
    deep: tuple = (1, 3)  # layers that the language model's first ones read


TOWER = TowerSize()


class VisionAttention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.heads = size.heads
        self.qkv, self.proj = nn.Linear(size.hidden, 3 * size.hidden), nn.Linear(size.hidden, size.hidden)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

        def rotate(t):
            a, b = t.chunk(2, -1)
            return (t * cos + torch.cat((-b, a), -1) * sin).to(v.dtype)

        o = F.scaled_dot_product_attention(rotate(q), rotate(k), v)
        return self.proj(o.transpose(1, 2).flatten(2))


class VisionMlp(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(size.hidden, size.ffn), nn.Linear(size.ffn, size.hidden)

    def forward(self, x):
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(size.hidden, eps=1e-6) for _ in range(2))
        self.attn, self.mlp = VisionAttention(size), VisionMlp(size)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Squares of patches as rows of the language model. Those of DeepStack norm the whole square."""

    def __init__(self, size, output, deep):
        super().__init__()
        square, self.deep = size.hidden * MERGE**2, deep
        self.norm = nn.LayerNorm(square if deep else size.hidden, eps=1e-6)
        self.linear_fc1, self.linear_fc2 = nn.Linear(square, square), nn.Linear(square, output)

    def forward(self, x, h, w):
        x = x if self.deep else self.norm(x)
        x = x.view(len(x), h // MERGE, MERGE, w // MERGE, MERGE, -1).transpose(2, 3).flatten(3).flatten(1, 2)
        x = self.norm(x) if self.deep else x
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class Tower(nn.Module):
    """Of images of one size; patches are in the order of their rows, which only the merger must know."""

    def __init__(self, size, output):
        super().__init__()
        self.size, self.places = size, {}
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv3d(3, size.hidden, (2, PATCH, PATCH), (2, PATCH, PATCH))
        self.pos_embed = nn.Embedding(size.side**2, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.merger = Merger(size, output, False)
        self.deepstack_merger_list = nn.ModuleList(Merger(size, output, True) for _ in size.deep)

    def place(self, h, w, device):
        """How each patch mixes learned positions, and its angles' cosines and sines."""
        if (h, w) not in self.places:
            side = self.size.side

            def mix(n):
                at = torch.linspace(0, side - 1, n)
                return (1 - (at[:, None] - torch.arange(side)).abs()).clamp(min=0)

            mixed = torch.einsum("ha,wb->hwab", mix(h), mix(w)).reshape(h * w, side**2)
            d = self.size.hidden // self.size.heads // 2
            inverse = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)
            rows, columns = torch.arange(h).repeat_interleave(w), torch.arange(w).repeat(h)
            angles = torch.cat([torch.outer(t.float(), inverse) for t in (rows, columns)] * 2, -1)
            self.places[h, w] = [t.to(device) for t in (mixed, angles.cos(), angles.sin())]
        return self.places[h, w]

    def forward(self, pixels):
        """`[rows, 3, height, width]` bytes to `[rows, tokens, hidden]`, and DeepStack's list of such."""
        rows, h, w = len(pixels), pixels.shape[2] // PATCH, pixels.shape[3] // PATCH
        x = (pixels.float() / 255 - 0.5) / 0.5
        x = x.view(rows, 3, h, PATCH, w, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(rows, h * w, -1)
        mixed, cos, sin = self.place(h, w, x.device)
        # A still image is two frames that are alike.
        x = F.linear(x, self.patch_embed.proj.weight.sum(2).flatten(1), self.patch_embed.proj.bias)
        x, deep = x.float() + mixed @ self.pos_embed.weight, []
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin)
            if i in self.size.deep:
                deep.append(self.deepstack_merger_list[len(deep)](x, h, w))
        return self.merger(x, h, w), deep


class Language(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed_tokens = nn.Embedding(qwen3.VOCABULARY + len(VISION), size.hidden)
        self.layers, self.norm = nn.ModuleList(qwen3.Layer(size) for _ in range(size.layers)), qwen3.Norm(size.hidden)


class Seeing(nn.Module):
    """Its parameters bear the checkpoint's names."""

    def __init__(self, size=qwen3.SIZES["demo"], tower=TOWER):
        super().__init__()
        self.size, self.tower = size, tower
        self.model = nn.Module()
        self.model.language_model, self.model.visual = Language(size), Tower(tower, size.hidden)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = any(part in name for part in ("o_proj", "down_proj", "attn.proj", "blocks.", "linear_fc2"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * size.layers) if last and "qkv" not in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        # The frequencies' axes, interleaved.
        axes = [j % 3 if j % 3 and j < 3 * SECTIONS[j % 3] else 0 for j in range(size.head_dim // 2)]
        inverse = 1.0 / qwen3.THETA ** (torch.arange(0, size.head_dim, 2).float() / size.head_dim)
        self.register_buffer("axes", torch.tensor(axes), persistent=False)
        self.register_buffer("inverse", inverse, persistent=False)

    @staticmethod
    def stored_name(name):
        return name

    @staticmethod
    def is_matrix(name, p):
        """Whether Muon trains it."""
        return p.ndim == 2 and "embed" not in name

    def config(self):
        text = qwen3.config(self.size) | {
            "model_type": "qwen3_vl_text", "vocab_size": qwen3.VOCABULARY + len(VISION), "dtype": "bfloat16",
            "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": SECTIONS}}
        for name in ("architectures", "rope_parameters", "torch_dtype"):
            del text[name]
        t = self.tower
        vision = {"model_type": "qwen3_vl", "depth": t.depth, "hidden_size": t.hidden, "num_heads": t.heads,
                  "intermediate_size": t.ffn, "out_hidden_size": self.size.hidden, "hidden_act": "gelu_pytorch_tanh",
                  "in_channels": 3, "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 2,
                  "num_position_embeddings": t.side**2, "deepstack_visual_indexes": list(t.deep),
                  "initializer_range": 0.02}
        return {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": text,
                "vision_config": vision, "image_token_id": IMAGE, "video_token_id": VIDEO,
                "vision_start_token_id": START, "vision_end_token_id": END, "tie_word_embeddings": True,
                "torch_dtype": "bfloat16", "eos_token_id": [8185, 8183], "pad_token_id": 8183}

    def hidden(self, ids, pixels=None, start=None):
        """The last hidden states. Images of one size, if any, take the places of `ids` from `start` on."""
        language, fast = self.model.language_model, ids.is_cuda
        dtype = torch.bfloat16 if fast else torch.float32
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=fast):
            at = torch.arange(ids.shape[1], device=ids.device)[None]
            x, position, deep = language.embed_tokens(ids).to(dtype), at[..., None].expand(-1, -1, 3), []
            if pixels is not None:
                h, w = (n // PATCH // MERGE for n in pixels.shape[2:])
                start, k = start[:, None], (at - start[:, None]).clamp(0, h * w - 1)
                inside = (at >= start) & (at < start + h * w)
                t = torch.where(inside, start, torch.where(at < start, at, at - h * w + max(h, w)))
                position = torch.stack([t, torch.where(inside, start + k // w, t),
                                        torch.where(inside, start + k % w, t)], -1)
                merged, deep = self.model.visual(pixels)
                spread = lambda t: t.to(dtype).gather(1, k[..., None].expand(-1, -1, t.shape[-1]))
                x, inside = torch.where(inside[..., None], spread(merged), x), inside[..., None]
            angles = position[..., self.axes].float() * self.inverse
            angles = torch.cat((angles, angles), -1)[:, None]
            cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
            for i, layer in enumerate(language.layers):
                x = layer(x, cos, sin)
                if i < len(deep):
                    x = x + torch.where(inside, spread(deep[i]), 0)
            return language.norm(x)

    def logits(self, hidden):
        """The head is the embedding."""
        return F.linear(hidden, self.model.language_model.embed_tokens.weight.to(hidden.dtype)).float()

    def answers(self, b):
        """Logits of a batch's answers, `[rows, ANSWERS, vocabulary]`."""
        hidden = self.hidden(b["ids"], b["pixels"], b["start"])
        return self.logits(hidden.gather(1, b["at"][..., None].expand(-1, -1, hidden.shape[-1])))

    def image_loss(self, b):
        return F.cross_entropy(self.answers(b).flatten(0, 1), b["targets"].flatten(), ignore_index=-1)

    def text_loss(self, ids, weights):
        weights = weights[:, 1:].flatten()
        losses = F.cross_entropy(self.logits(self.hidden(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten(),
                                 reduction="none")
        return (losses * weights).sum() / weights.sum()

    def compile_parts(self):
        torch._dynamo.config.suppress_errors = True
        for name in ("recompile_limit", "cache_size_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, 64)
        for layer in self.model.language_model.layers:
            layer.compile(dynamic=False)
        for block in self.model.visual.blocks:
            block.compile(dynamic=True)  # images have many sizes


def dequantized(directory):
    """The tensors of a checkpoint of MLX's affine quantization, as f32."""
    quantization = json.loads((directory / "config.json").read_text())["quantization"]
    bits, group, tensors, out = quantization["bits"], quantization["group_size"], {}, {}
    for file in sorted(directory.glob("model*.safetensors")):
        tensors |= load_file(file)
    for name, t in tensors.items():
        base = name.removesuffix(".weight")
        if base + ".scales" in tensors and name.endswith(".weight"):
            stream = np.unpackbits(t.numpy().view(np.uint8), axis=1, bitorder="little")
            q = stream.reshape(len(t), -1, bits) @ (1 << np.arange(bits)).astype(np.float32)
            q = torch.from_numpy(q.astype(np.float32)).view(len(t), -1, group)
            scales, biases = (tensors[f"{base}.{part}"].float()[..., None] for part in ("scales", "biases"))
            out[name] = (q * scales + biases).flatten(1)
        elif not name.endswith((".scales", ".biases")):
            out[name] = t.float()
    return out


def with_demo(model, directory):
    """The language model as the demo model is; its new tokens as an average one, near enough."""
    known, language = dequantized(directory), model.model.language_model
    table = known["model.embed_tokens.weight"]
    new = table.mean(0) + torch.randn(len(VISION), table.shape[1]) * table.std() * 0.3
    known["model.embed_tokens.weight"] = torch.cat([table, new])
    language.load_state_dict({k.removeprefix("model."): v for k, v in known.items() if k != "lm_head.weight"})
    return model


def tokenizer(demo):
    t = Tokenizer.from_file(str(demo / "tokenizer.json"))
    t.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in VISION])
    assert t.token_to_id(VISION[0]) == START
    return t


SAID = ("{%- macro said(content) %}{%- if content is string %}{{- content }}{%- else %}{%- for part in content %}"
        "{%- if part.type == 'text' %}{{- part.text }}{%- elif part.type == 'video' %}"
        "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}{%- else %}"
        "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- endif %}{%- endfor %}{%- endif %}{%- endmacro %}\n")


def write_files(demo, out):
    """What stands beside the weights."""
    tokenizer(demo).save(str(out / "tokenizer.json"))
    config = json.loads((demo / "tokenizer_config.json").read_text())
    template = config["chat_template"].replace("messages[0].content +", "said(messages[0].content) +")
    template = template.replace("'\\n' + m.content +", "'\\n' + said(m.content) +")
    template = template.replace("<tool_response>\\n' + m.content +", "<tool_response>\\n' + said(m.content) +")
    config |= {"chat_template": SAID + template, "image_token": VISION[2], "video_token": VISION[3],
               "vision_bos_token": VISION[0], "vision_eos_token": VISION[1]}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    areas = [h * w for h, w in scenes.SIZES]
    processor = {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor",
                 "size": {"shortest_edge": min(areas), "longest_edge": max(areas)}, "patch_size": PATCH,
                 "temporal_patch_size": 2, "merge_size": MERGE, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))


class Rows(Data):
    """Rows of token ids: chats about scenes, and chats without any."""

    def __init__(self, tokenizer, seed):
        self.r, self.tokenizer, self.known = random.Random(seed), tokenizer, {}
        self.end_of_text, self.start, self.end = map(
            tokenizer.token_to_id, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
        self.assistant = self.encode("assistant\n")

    def ids(self, text):
        if text not in self.known:
            self.known[text] = self.encode(text)
        return self.known[text]

    def seen(self, scene, turns):
        """(ids, where the image begins, where answers' tokens are) of a scene and what is asked about it."""
        r, squares = self.r, scene.size[0] * scene.size[1] // (PATCH * MERGE) ** 2
        image, opening = [START, *[IMAGE] * squares, END], r.choice(tasks.SYSTEM) if r.random() < 0.4 else ""
        row, answers = list(self.ids(tasks.message("system", opening))) if opening else [], []
        for i, (question, said) in enumerate(turns):
            row += self.ids("<|im_start|>user\n")
            question = self.ids(question)
            before = i == 0 and r.random() < 0.7
            row += image + question if before else question + image if i == 0 else question
            row += self.ids("<|im_end|>\n<|im_start|>assistant\n")
            row += self.ids(tasks.NO_THINKING) if i == len(turns) - 1 else []  # templates drop that of earlier turns
            said = [*self.ids(said), self.end]
            answers += range(len(row), len(row) + len(said))
            row += [*said, *self.ids("\n")]
        return row, row.index(START) + 1, answers

    def scene_batch(self, size, rows=BATCH, turns=True):
        """Arrays of a batch, and each row's first task."""
        r, made, kinds = self.r, [], []
        ids, start = np.full((rows, LENGTH), self.end_of_text, np.int16), np.zeros(rows, np.int64)
        at, targets = np.zeros((rows, ANSWERS), np.int16), np.full((rows, ANSWERS), -1, np.int16)
        for i in range(rows):
            scene = scenes.Scene(r, size)
            asked = list(scene.asked.items())
            r.shuffle(asked)
            n = 2 if turns and len(asked) > 1 and r.random() < 0.6 else 1
            row, first, answers = self.seen(scene, [pair for _, pair in asked[:n]])
            while len(row) > LENGTH or len(answers) > ANSWERS:
                row, first, answers = self.seen(scene, [asked[0][1]])
            ids[i, :len(row)], start[i] = row, first
            at[i, :len(answers)] = [a - 1 for a in answers]
            targets[i, :len(answers)] = [row[a] for a in answers]
            made.append(scene.arrays())
            kinds.append(asked[0][0])
        return size, [np.stack(x) for x in zip(*made)], ids, start, at, targets, kinds

    def text_batch(self):
        shape = TEXT_ROWS, TEXT_LENGTH + 1
        ids, weights = np.zeros(shape, np.int16), np.zeros(shape, np.uint8)
        for i in range(TEXT_ROWS):
            a, b = [], []
            while len(a) <= TEXT_LENGTH:
                more = self.chat(tasks.short_task(self.r, [""], tasks.NOUN + tasks.ADJECTIVE))
                a, b = a + more[0], b + more[1]
            ids[i], weights[i] = a[:TEXT_LENGTH + 1], b[:TEXT_LENGTH + 1]
        return ids, weights


def make(demo, seed, images, texts, rows):
    torch.set_num_threads(1)
    source = Rows(tokenizer(demo), seed)
    while True:
        images.put(source.scene_batch(source.r.choice(scenes.SIZES), rows))
        texts.put(source.text_batch())  # as many as are used: else one queue is full while the other is awaited


def on_device(made, painter, device):
    size, drawn, ids, start, at, targets, kinds = made
    to = lambda a: torch.from_numpy(a).to(device)
    pixels = painter.paint(size, *map(to, drawn))
    return {"pixels": pixels, "ids": to(ids).long(), "start": to(start), "at": to(at).long(),
            "targets": to(targets).long(), "kinds": kinds}


def accuracies(model, batches):
    """By task: the share of answers that are right to the token. (With gradients, so that nothing is compiled anew.)"""
    right = {}
    for b in batches:
        wrong = (model.answers(b).detach().argmax(-1) != b["targets"]) & (b["targets"] >= 0)
        for kind, ok in zip(b["kinds"], (~wrong.any(1)).tolist()):
            right.setdefault(kind, []).append(ok)
    return {k: round(100 * sum(v) / len(v), 1) for k, v in sorted(right.items())}


def optimizers(model):
    groups = {True: [], False: []}
    for language in (True, False):
        named = [(n, p) for n, p in model.named_parameters() if ("language_model" in n) == language]
        for matrix in groups:
            rate = (MATRIX_RATE if matrix else OTHER_RATE) * (LANGUAGE_FACTOR if language else 1)
            chosen = [p for n, p in named if model.is_matrix(n, p) == matrix]
            groups[matrix].append({"params": chosen, "lr": rate, "peak": rate})
    return [Muon(groups[True], MATRIX_RATE), torch.optim.AdamW(groups[False], OTHER_RATE, betas=(0.9, 0.95),
                                                               weight_decay=0)]


def train(model, painter, images, texts, held_out, a, device):
    """Until the time is over; saves on the way."""
    used, begun, steps, saved, told = optimizers(model), time.time(), 0, time.time(), time.time()
    seconds, seen = a.finish - begun, 0
    while time.time() < a.finish and steps != a.steps:
        done = (time.time() - begun) / seconds
        factor = min(1, (steps + 1) / 200) * max(0.02, 1 - done)
        for group in (g for o in used for g in o.param_groups):
            group["lr"] = group["peak"] * factor
        batch = on_device(images.get(), painter, device)
        loss = model.image_loss(batch)
        loss.backward()
        ids, weights = (torch.from_numpy(t).to(device) for t in texts.get())
        text = model.text_loss(ids.long(), weights.float())
        (TEXT_WEIGHT * text).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in used:
            o.step()
        model.zero_grad(set_to_none=True)
        steps, seen, now = steps + 1, seen + len(batch["ids"]), time.time()
        if steps in (1, 10, 50) or now - told > 30 or steps == a.steps:
            told = now
            print(f"{now - a.begun:.0f} s: step {steps}, {seen / (now - begun):.0f} images/s, loss {loss.item():.3f}, "
                  f"text {text.item():.3f}, queued {images.qsize()} {texts.qsize()}", flush=True)
            if steps > 50:
                print("   ", accuracies(model, held_out), flush=True)
        if now - saved > 120:
            qwen3.save(model, a.out, SHARD)
            saved = now
    return steps


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--demo", type=Path, default=Path(__file__).parents[2] / "crates/server/models/demo")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--minutes", type=float, default=7, help="from the start to the last step")
    p.add_argument("--batch", type=int, default=BATCH)
    p.add_argument("--steps", type=int, default=-1, help="stop after so many")
    p.add_argument("--workers", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    p.add_argument("--seed", type=int, default=1000)
    p.add_argument("--no-compile", action="store_true")
    a = p.parse_args()
    a.begun = time.time()
    a.finish = a.begun + 60 * a.minutes
    a.out.mkdir(parents=True, exist_ok=True)
    write_files(a.demo, a.out)

    # Before CUDA: a forked process cannot use it.
    context = mp.get_context("fork")
    images, texts = context.Queue(maxsize=48), context.Queue(maxsize=48)
    workers = [context.Process(target=make, args=(a.demo, a.seed + i, images, texts, a.batch), daemon=True)
               for i in range(a.workers)]
    for w in workers:
        w.start()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model, painter = with_demo(Seeing(), a.demo).to(device), scenes.Painter(device)
    count = lambda m: sum(p.numel() for p in m.parameters()) / 1e6
    print(f"{count(model):.1f} M parameters, of the tower {count(model.model.visual):.1f} M", flush=True)
    if device == "cuda" and not a.no_compile:
        model.compile_parts()
    fresh = Rows(tokenizer(a.demo), 424242)
    held_out = [on_device(fresh.scene_batch(size, a.batch, False), painter, device) for size in scenes.SIZES[::2]]
    steps = train(model, painter, images, texts, held_out, a, device)
    qwen3.save(model, a.out, SHARD)
    print(f"{time.time() - a.begun:.0f} s: saved after {steps} steps", flush=True)
    print("held out:", json.dumps(accuracies(model, held_out)), flush=True)
    for w in workers:
        w.terminate()


if __name__ == "__main__":
    main()
