"""llama.cpp's part of compare_gguf.py, in a process of its own: its threads wait busily.

    python llama_cpp_answers.py MODEL QUESTIONS ANSWERS THREADS

QUESTIONS is JSON: `text` and `windows` x `window` tokens of it to score, `prompts` to continue by `tokens`.
"""

import json
import os
import sys
from pathlib import Path

import llama_cpp
import numpy as np

# Candidates of each greedy step.
SHOWN = 20


def log_sum(row):
    """The logarithm of the sum of what is not normed yet."""
    top = row.max()
    return float(top) + float(np.log(np.exp(row - top).sum(dtype=np.float64)))


def open_model(path, context, threads):
    return llama_cpp.Llama(path, n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads,
                           logits_all=True, verbose=False)


def logits_of(model, tokens):
    """Logits after each of `tokens`, which follow what was evaluated."""
    first = model.n_tokens
    model.eval(tokens)
    return model.scores[first:first + len(tokens)]


def score(model, questions):
    """Tokens of each window, and the log-probability of each but the first."""
    begin = [model.token_bos()] if model._model.add_bos_token() else []
    tokens = model.tokenize(questions["text"].encode(), add_bos=False, special=False)
    size, windows = questions["window"], []
    for i in range(questions["windows"]):
        window = begin + tokens[i * size:(i + 1) * size]
        assert len(window) == len(begin) + size, "the text is too short"
        model.reset()
        rows = zip(logits_of(model, window), window[1:])
        windows.append({"tokens": window, "logprobs": [float(row[t]) - log_sum(row) for row, t in rows]})
    return windows


def piece(model, token):
    return model.detokenize([token], special=True).decode(errors="replace")


def follow(model, prompt, count):
    """Greedy tokens after a prompt, and the log-probabilities of all that any engine may choose."""
    tokens = model.tokenize(prompt.encode(), add_bos=model._model.add_bos_token(), special=False)
    model.reset()
    row, steps = logits_of(model, tokens)[-1], []
    for _ in range(count):
        best = np.argpartition(row, -SHOWN)[-SHOWN:]
        best, whole = [int(t) for t in best[np.argsort(-row[best])]], log_sum(row)
        steps.append([[piece(model, t), float(row[t]) - whole] for t in best])
        row = logits_of(model, best[:1])[-1]
    return {"tokens": tokens, "steps": steps}


def main():
    path, questions, answers, threads = sys.argv[1:]
    questions = json.loads(Path(questions).read_text())
    model = open_model(path, max(questions["window"] + 8, 512), int(threads))
    found = {
        "version": llama_cpp.__version__,
        "windows": score(model, questions),
        "answers": [follow(model, prompt, questions["tokens"]) for prompt in questions["prompts"]],
    }
    Path(answers).write_text(json.dumps(found))
    # Its threads do not end by themselves.
    os._exit(0)


main()
