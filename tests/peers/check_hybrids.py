"""Compares Taper's answers on GGUF files of hybrid models with llama.cpp's: Qwen 3.5, dense and with experts.

    pip install -r requirements.txt
    python check_hybrids.py TAPER

The weights are random, of the published sizes (shapes.py). Both programs must make the same tokens of texts, and
continue prompts greedily with the same tokens.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gguf"))

import check_llama
import models
import shapes

PROMPTS = ["The capital of France is", "Once upon a time there was", "def fibonacci(n):\n    "]
TEXTS = ["It's 12,345 o'clock, naïve café!", "  if x:\n\t\treturn 1 # 數字"]


def main():
    good = bad = 0
    for name, file in shapes.files(models.smollm2()).items():
        for what, same in check_llama.compare(Path(sys.argv[1]).resolve(), file, PROMPTS, TEXTS, 30):
            good, bad = good + same, bad + (not same)
            print("same" if same else "OTHER", name, what, flush=True)
    print(f"{good} passed, {bad} failed")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
