"""Trains the demo model on one GPU, ten minutes on a recent one:

    train.py corpus.txt tokenizer.json OUT [--size demo] [--resume DENSE] [--seconds 240 120 120 100] [--workers 14]

Four stages, each a time and a longer context. Rows are made by worker processes as they are needed.
"""

import argparse
import multiprocessing as mp
import random
import shutil
import time
from pathlib import Path

import hybrid
import model as qwen3
import numpy as np
import torch
from data import DOCUMENT, Data

STAGES = [(2048, 64), (16384, 8), (65536, 2), (262144, 1)]  # tokens a row, rows a step
MATRIX_RATE, OTHER_RATE = 0.02, 3e-3


def orthogonalized(gradients, steps=5):
    """Newton-Schulz iteration in bf16 on a stack of matrices."""
    x = gradients.bfloat16()
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose steps are made orthogonal, matrices of one shape at a time (Jordan et al., 2024)."""

    def __init__(self, parameters, lr, momentum=0.95, decay=0.02):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for shape, parameters in shapes.items():
                updates = []
                for p in parameters:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    average.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(average, group["momentum"]))
                scale = max(1, shape[-2] / shape[-1]) ** 0.5
                for p, update in zip(parameters, orthogonalized(torch.stack(updates))):
                    p.mul_(1 - group["lr"] * group["decay"])
                    p.add_(update.to(p.dtype), alpha=-group["lr"] * scale)


def make_rows(data, seed, stage, queue):
    torch.set_num_threads(1)
    data.r = random.Random(seed)
    while True:
        current = stage.value
        length, rows = STAGES[current]
        made = [data.row(current, length) for _ in range(min(rows, 16))]
        queue.put((current, *map(np.stack, zip(*made))))


def batch(queue, stage, rows):
    """Rows of this stage; those that were made for the one before are dropped."""
    ids, weights, count = [], [], 0
    while count < rows:
        made_for, a, b = queue.get()
        if made_for == stage:
            ids.append(a)
            weights.append(b)
            count += len(a)
    ids, weights = np.concatenate(ids)[:rows].astype(np.int64), np.concatenate(weights)[:rows].astype(np.float32)
    ids, weights = torch.from_numpy(ids).cuda(), torch.from_numpy(weights / DOCUMENT).cuda()
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weights[:, 1:].contiguous()


def rate(stage, step, done):
    """The learning rates' factor; `done` is the stage's share of time."""
    return [min(1, step / 200) * (1 - 0.4 * done), 0.5 - 0.2 * done, 0.3 - 0.1 * done, 0.2 * (1 - done) + 0.01][stage]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("corpus", type=Path)
    p.add_argument("tokenizer", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--seconds", type=float, nargs=len(STAGES), default=[240, 120, 120, 100])
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--size", choices=[*qwen3.SIZES, *hybrid.SIZES], default="demo")
    p.add_argument("--resume", type=Path, metavar="DENSE", help="begin with a checkpoint that this wrote")
    p.add_argument("--rate", type=float, default=1.0, help="factor of all learning rates")
    p.add_argument("--seed", type=int, default=1000)
    p.add_argument("--head-only", action="store_true", help="train the MTP head of a checkpoint, and nothing else")
    p.add_argument("--documents", type=float, default=0.03, help="share of rows that are documents")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    started = time.time()

    # Before CUDA: a forked process cannot use it.
    context = mp.get_context("fork")
    stage_now, queue = context.Value("i", 0), context.Queue(maxsize=96)
    data = Data(a.corpus, a.tokenizer, a.seed, a.documents)
    workers = [context.Process(target=make_rows, args=(data, a.seed + i, stage_now, queue), daemon=True)
               for i in range(a.workers)]
    for w in workers:
        w.start()

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = (qwen3.load(a.resume).train() if a.resume else qwen3.new(a.size)).cuda()
    if a.head_only:
        model.train_head_only()
    learned = [(n, x) for n, x in model.named_parameters() if x.requires_grad]
    matrices = [x for n, x in learned if model.is_matrix(n, x)]
    others = [x for n, x in learned if not model.is_matrix(n, x)]
    muon = Muon(matrices, MATRIX_RATE)
    adam = torch.optim.AdamW(others, OTHER_RATE, betas=(0.9, 0.95), weight_decay=0, fused=True)
    model.compile_parts()
    steps, tokens = 0, 0
    for stage, ((length, rows), seconds) in enumerate(zip(STAGES, a.seconds)):
        if seconds == 0:
            continue
        stage_now.value = stage
        begun, k = None, 0  # the clock starts after compilation
        while begun is None or time.time() - begun < seconds:
            factor = a.rate * rate(stage, steps, 0 if begun is None else (time.time() - begun) / seconds)
            for group in muon.param_groups:
                group["lr"] = MATRIX_RATE * factor
            for group in adam.param_groups:
                group["lr"] = OTHER_RATE * factor
            loss = model(*batch(queue, stage, rows))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            muon.step()
            adam.step()
            model.zero_grad(set_to_none=True)
            steps, k, tokens = steps + 1, k + 1, tokens + length * rows
            if k <= 3 or k % (200, 50, 20, 10)[stage] == 0:
                print(f"{time.time() - started:.0f} s: stage {stage} step {k} loss {loss.item():.3f} "
                      f"tokens {tokens / 1e6:.1f} M", flush=True)
            if k == 3:
                begun = time.time()
        qwen3.save(model, a.out)
    shutil.copy(a.tokenizer, a.out / "tokenizer.json")
    for w in workers:
        w.terminate()


if __name__ == "__main__":
    main()
