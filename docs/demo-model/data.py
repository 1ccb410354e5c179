"""Training rows: token ids and how much each token's loss counts."""

import random
import re
from pathlib import Path

import numpy as np
import tasks
from tokenizers import Tokenizer

ANSWER, DOCUMENT, OTHER = 12, 3, 1  # weights of tokens; the hay of a needle row has none
TASK_SHARE = (0.60, 0.35, 0.25, 0.10)  # by stage, with the documents; needles are the rest
MANY_SHARE = (0.3, 0.6, 0.8, 0.9)  # of needle rows, those with many needles


def documents(corpus):
    """(training, held out): the same thirtieth is held out in every run."""
    found = [d.strip("\n") for d in Path(corpus).read_text().split("\0") if len(d) > 300]
    random.Random(7).shuffle(found)
    n = len(found) // 30
    return found[n:], found[:n]


class Data:
    def __init__(self, corpus, tokenizer, seed, document_share=0.03):
        """`document_share` is that of rows which are documents."""
        self.r, self.document_share = random.Random(seed), document_share
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        train, self.held_out = documents(corpus)
        self.paragraphs = [p for d in train for p in d.split("\n\n") if len(p) > 60]
        self.vocabulary = sorted({w for p in self.paragraphs[:20000] for w in re.findall(r"[a-z]{4,10}", p)})
        batch = lambda texts: [e.ids for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]
        self.document_ids, self.paragraph_ids = batch(train), batch(self.paragraphs)
        self.gap = self.encode("\n\n")
        self.end_of_text, self.start, self.end = map(
            self.tokenizer.token_to_id, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
        self.assistant = self.encode("assistant\n")

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def chat(self, text):
        """A chat, its answers weighted. Templates drop the reasoning of earlier turns, so most rows do as well."""
        if text.count("<|im_start|>assistant") > 1 and self.r.random() < 0.6:
            *earlier, last = text.split(tasks.NO_THINKING)
            if earlier:
                text = "".join(earlier) + tasks.NO_THINKING + last
        ids = self.encode(text)
        weights, i, n = [OTHER] * len(ids), 0, len(self.assistant)
        while i < len(ids):
            if ids[i] == self.start and ids[i + 1:i + 1 + n] == self.assistant:
                i += 1 + n
                while i < len(ids):
                    weights[i] = ANSWER
                    if ids[i] == self.end:
                        break
                    i += 1
            i += 1
        return ids + [self.end_of_text], weights + [OTHER]

    def needle(self, length, many):
        """A text of about `length` tokens with needles in it, and questions after it."""
        r = self.r
        needles = tasks.needles(r, r.randint(6, 48) if many else r.randint(1, 6), self.vocabulary)
        asked = needles[:]
        r.shuffle(asked)
        asked = asked[:r.randint(6, 32) if many else r.randint(1, 4)]
        _, question, answer = asked[0]
        question = r.choice(["", "Answer from the text above. "]) + question
        tail = f"\n\n{question}<|im_end|>\n" + tasks.answer(answer)
        for _, question, answer in asked[1:]:
            thinking = tasks.NO_THINKING if r.random() < 0.3 else ""
            tail += tasks.ask(question) + tasks.message("assistant", thinking + answer)
        opening = ["", "A special fact is hidden within the following text. Memorize it.\n\n", "Read this text.\n\n"]
        head = self.encode(tasks.system(r) + "<|im_start|>user\n" + r.choice(opening))
        tail, tail_weights = self.chat(tail)
        inserts = [self.encode(n[0]) for n in needles]
        room = length - len(head) - len(tail) - 2 - sum(len(x) + 4 for x in inserts)
        # Seven in ten have whole documents for hay, the others single paragraphs.
        source = self.document_ids if r.random() < 0.7 else self.paragraph_ids
        hay = []
        while room > 0:
            piece = r.choice(source)[:room]
            hay += piece + self.gap
            room -= len(piece) + 2
        body, last = [], 0
        for cut, k in sorted((r.randint(0, len(hay)), k) for k in range(len(needles))):
            own_line = r.random() < 0.6
            needle = self.gap + inserts[k] + self.gap if own_line else self.encode(" " + needles[k][0])
            body += hay[last:cut] + needle
            last = cut
        body += hay[last:]
        return head + body + tail, [0] * (len(head) + len(body)) + tail_weights

    def row(self, stage, length):
        """`length + 1` tokens of one kind."""
        r, ids, weights = self.r, [], []
        k = r.random()
        while len(ids) < length + 1:
            if k < self.document_share:
                d = r.choice(self.document_ids)
                more = d + [self.end_of_text], [DOCUMENT] * (len(d) + 1)
            elif k < TASK_SHARE[stage]:
                more = self.chat(tasks.short_task(r, self.paragraphs, self.vocabulary))
            else:
                if stage == 0:
                    wanted = r.choice([200, 400, 800, 1200, 2000])
                else:
                    wanted = length if r.random() < 0.7 else r.randint(length // 8, length)
                more = self.needle(wanted, r.random() < MANY_SHARE[stage])
            ids, weights = ids + more[0], weights + more[1]
        if k >= TASK_SHARE[stage] and stage > 0:  # a long needle row keeps its end: the answers
            ids, weights = ids[-(length + 1):], weights[-(length + 1):]
        return np.array(ids[:length + 1], np.int16), np.array(weights[:length + 1], np.uint8)


def first_answer(ids, weights, end):
    """(prompt, the first answer without its end)"""
    cut = weights.index(ANSWER)
    return ids[:cut], ids[cut:ids.index(end, cut)]
