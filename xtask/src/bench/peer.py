"""Tokens a second of transformers or mlx-lm, as a JSON list on the last line.

ENGINE version
ENGINE MODEL THREADS PROMPT DECODE BATCH SAMPLES

Without DECODE, prompts of PROMPT tokens are timed; with it, DECODE steps after PROMPT tokens, of BATCH
sequences together. The first run is not counted.
"""

import json
import sys
import time

STEP = 512


def tokens(n):
    return [i * 7 % 251 for i in range(n)]


class Transformers:
    def __init__(self, model, threads):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, attn_implementation="sdpa").eval()

    @staticmethod
    def version():
        import torch
        import transformers
        return f"{transformers.__version__} (torch {torch.__version__})"

    def cache(self):
        from transformers import DynamicCache
        return DynamicCache(config=self.model.config)

    def feed(self, cache, rows):
        """Appends rows of tokens and gives the next token of each."""
        logits = self.model(self.torch.tensor(rows), past_key_values=cache, use_cache=True,
                            logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True).tolist()

    def crop(self, cache, n):
        cache.crop(-n)


class MlxLm:
    def __init__(self, model, threads):
        import mlx.core as mx
        from mlx_lm import load

        mx.set_default_device(mx.cpu)
        self.mx = mx
        self.model, _ = load(model)

    @staticmethod
    def version():
        from importlib.metadata import version
        return f"{version('mlx-lm')} (mlx {version('mlx')})"

    def cache(self):
        from mlx_lm.models.cache import make_prompt_cache
        return make_prompt_cache(self.model)

    def feed(self, cache, rows):
        logits = self.model(self.mx.array(rows), cache=cache)[:, -1, :]
        return self.mx.argmax(logits, axis=-1, keepdims=True).tolist()

    def crop(self, cache, n):
        from mlx_lm.models.cache import trim_prompt_cache
        trim_prompt_cache(cache, n)


ENGINES = {"transformers": Transformers, "mlx-lm": MlxLm}


def prefill(engine, n, batch):
    cache = engine.cache()
    row = tokens(n)
    for i in range(0, n, STEP):
        engine.feed(cache, [row[i:i + STEP]] * batch)
    return cache


def measure(engine, prompt, decode, batch, samples):
    speeds = []
    cache = prefill(engine, prompt, batch)
    if decode:
        engine.feed(cache, [[7]] * batch)
        if prompt:
            engine.crop(cache, 1)
    for _ in range(samples):
        start = time.perf_counter()
        if decode:
            rows = [[7]] * batch
            for _ in range(decode):
                rows = engine.feed(cache, rows)
            speeds.append(decode * batch / (time.perf_counter() - start))
            engine.crop(cache, decode)
        else:
            prefill(engine, prompt, batch)
            speeds.append(prompt * batch / (time.perf_counter() - start))
    return speeds


def main(name, *words):
    engine = ENGINES[name]
    if words == ("version",):
        print(engine.version())
        return
    threads, prompt, decode, batch, samples = map(int, words[1:])
    print(json.dumps(measure(engine(words[0], threads), prompt, decode, batch, samples)))


main(*sys.argv[1:])
