"""The mean of two checkpoints of one run, which answers better than either:

    average.py FIRST SECOND OUT [--share 0.7]      # the share of the second
"""

import argparse
import shutil
from pathlib import Path

import model as qwen3
import torch


@torch.inference_mode()
def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("first", type=Path)
    p.add_argument("second", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--share", type=float, default=0.7)
    a = p.parse_args()
    mean, second = qwen3.load(a.first), qwen3.load(a.second)
    for x, y in zip(mean.parameters(), second.parameters()):
        x.lerp_(y, a.share)
    a.out.mkdir(parents=True, exist_ok=True)
    qwen3.save(mean, a.out)
    shutil.copy(a.first / "tokenizer.json", a.out)


if __name__ == "__main__":
    main()
