"""Exact matches of greedy answers on fresh tasks, needles by length, and the held-out perplexity.

    evaluate.py corpus.txt MODEL [--device cuda] [--samples 60] [--needles 2000:50 8000:50 ...]

MODEL is what train.py writes (dense; it holds the tokenizer). There is no cache: long needles want a GPU.
"""

import argparse
import json
import math
from pathlib import Path

import model as qwen3
import tasks
import torch
import torch.nn.functional as F
from data import Data, first_answer

NEEDLES = ["2000:50", "8000:50", "32000:30", "64000:16", "128000:8"]


@torch.inference_mode()
def perplexity(model, data, device, tokens=400_000, window=2048):
    ids = [x for text in data.held_out for x in data.encode(text) + [data.end_of_text]][:tokens]
    losses = []
    for i in range(0, len(ids) - window, window):
        x = torch.tensor([ids[i:i + window + 1]], device=device)
        losses.append(F.cross_entropy(model.logits(model.hidden(x[:, :-1]))[0], x[0, 1:]).item())
    return math.exp(sum(losses) / len(losses))


def accepted(model, data, device, tokens=100_000, window=2048):
    """Of held-out prose, the share of tokens that the MTP head drafts as the model would say them."""
    ids = [x for text in data.held_out for x in data.encode(text) + [data.end_of_text]][:tokens]
    windows = (ids[i:i + window] for i in range(0, len(ids) - window, window))
    found = [model.accepted(torch.tensor([ids], device=device)) for ids in windows]
    return sum(right for right, _ in found) / sum(n for _, n in found)


def task_score(model, data, make, samples, opening=tasks.NO_THINKING):
    """The answer's opening is given, as a chat template gives it: empty reasoning, or the begin of some."""
    right, given = 0, data.encode(opening)
    for _ in range(samples):
        prompt, wanted = first_answer(*data.chat(make(data.r)), data.end)
        wanted = wanted[len(given):] if wanted[:len(given)] == given else wanted
        right += qwen3.greedy(model, prompt + given, len(wanted) + 8, data.end) == wanted
    return right


def everyday_score(model, data):
    """Every question of the list, in the first of its ways."""
    right, asked = 0, [(questions[0], said) for questions, said in tasks.EVERYDAY]
    for question, said in asked:
        prompt = data.encode(tasks.ask(question) + "<|im_start|>assistant\n" + tasks.NO_THINKING)
        wanted = data.encode(said)
        right += qwen3.greedy(model, prompt, len(wanted) + 8, data.end) == wanted
    return f"{right}/{len(asked)}"


def needle_score(model, data, length, samples):
    """The empty reasoning is given, as the chat template gives it."""
    right, given = 0, data.encode(tasks.NO_THINKING)
    for _ in range(samples):
        prompt, wanted = first_answer(*data.needle(length, many=False), data.end)
        wanted = wanted[len(given):] if wanted[:len(given)] == given else wanted
        right += qwen3.greedy(model, prompt + given, len(wanted) + 2, data.end) == wanted
    return right


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("corpus", type=Path)
    p.add_argument("model", type=Path)
    p.add_argument("--device", default="cuda")
    p.add_argument("--samples", type=int, default=60)
    p.add_argument("--needles", nargs="*", default=NEEDLES, metavar="TOKENS:SAMPLES")
    p.add_argument("--skip-perplexity", action="store_true")
    a = p.parse_args()
    model, data = qwen3.load(a.model).to(a.device), Data(a.corpus, a.model / "tokenizer.json", 4242)
    results = {}
    if not a.skip_perplexity:
        results["perplexity"] = perplexity(model, data, a.device)
    if hasattr(model, "mtp"):
        results["first draft accepted"] = accepted(model, data, a.device)
        print("first draft accepted", results["first draft accepted"], flush=True)
    results["everyday"] = everyday_score(model, data)
    print("everyday", results["everyday"], flush=True)
    kinds = {"tools": tasks.tool_call, "json": tasks.json_object, "chat": tasks.chat,
             "memory": lambda r: tasks.memory(r, data.vocabulary),
             "sums": lambda r: tasks.sum_(r, False, "+"), "differences": lambda r: tasks.sum_(r, False, "-"),
             "sums, thinking": lambda r: tasks.sum_(r, True, "+"),
             "differences, thinking": lambda r: tasks.sum_(r, True, "-")}
    for name, make in kinds.items():
        opening = "<think>\n" if "thinking" in name else tasks.NO_THINKING
        results[name] = f"{task_score(model, data, make, a.samples, opening)}/{a.samples}"
        print(name, results[name], flush=True)
    for case in a.needles:
        length, samples = map(int, case.split(":"))
        results[f"needle {length}"] = f"{needle_score(model, data, length, samples)}/{samples}"
        print(length, results[f"needle {length}"], flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
