"""Byte-level BPE of 8,192 tokens with Qwen's splitting, trained on the corpus and on synthetic chats.

    make_tokenizer.py corpus.txt tokenizer.json
"""

import argparse
import random
import re
from pathlib import Path

import tasks
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 8192
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("corpus", type=Path)
    p.add_argument("tokenizer", type=Path)
    a = p.parse_args()
    documents = a.corpus.read_text().split("\0")
    paragraphs = [x for d in documents for x in d.split("\n\n") if len(x) > 60]
    r = random.Random(0)
    vocabulary = sorted({w for x in r.sample(paragraphs, 3000) for w in re.findall(r"[a-z]{4,10}", x)})
    chats = [tasks.short_task(r, paragraphs, vocabulary) for _ in range(15000)]
    markers = re.compile("|".join(map(re.escape, SPECIAL + ADDED)))

    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIAL) - len(ADDED), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(documents + [markers.sub("", c) for c in chats], trainer)
    t.add_special_tokens(SPECIAL)
    t.add_tokens([AddedToken(x, normalized=False, special=False) for x in ADDED])
    assert t.get_vocab_size() == VOCABULARY
    assert t.decode(t.encode(chats[0]).ids, skip_special_tokens=False) == chats[0]
    t.save(str(a.tokenizer))
    sample = r.sample(paragraphs, 2000)
    print(f"{sum(map(len, sample)) / sum(len(t.encode(x).ids) for x in sample):.2f} characters a token")


if __name__ == "__main__":
    main()
