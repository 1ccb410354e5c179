"""Whether llama.cpp and Taper make the same of a GGUF file."""

from llama_cpp import llama_cpp, steps, tokenize
from served import serve

# Where both programs find two tokens as likely, up to this, either may come first.
NEAR = 2e-2


def same(a, b):
    """Whether two texts may be one token's: a part of a character is written differently, and so are control tokens."""
    return a == b or "" in (a, b) or "\ufffd" in a + b or a.startswith("bytes:")


def compare(taper, file, prompts, texts, count):
    """Pairs of what was compared, and whether it is the same."""
    with llama_cpp(file, 2, 1) as theirs, serve(taper, file, "--dtype", "float32", "--kv-cache-dtype", "f32") as ours:
        for text in texts:
            answer = ours.post("/v1/completions", prompt=text, max_tokens=1, echo=True, logprobs=0, temperature=0,
                               skip_special_tokens=False)
            mine = answer["choices"][0]["logprobs"]["tokens"][:-1]
            pieces = theirs.post("/tokenize", content=text, add_special=True, with_pieces=True)["tokens"]
            pieces = [p["piece"] if isinstance(p["piece"], str) else "" for p in pieces]
            good = len(mine) == len(pieces) and all(same(a, b) for a, b in zip(mine, pieces))
            yield f"tokens of {text[:12]!r}", good
        for prompt in prompts:
            tokens = tokenize(theirs, prompt)
            greedy = steps(theirs, tokens, count, 5)
            answer = ours.post("/v1/completions", prompt=tokens, max_tokens=count, temperature=0, logprobs=5,
                               ignore_eos=True, skip_special_tokens=False)["choices"][0]["logprobs"]
            good = len(answer["tokens"]) == count
            for step, own in zip(greedy, answer["tokens"]):
                _, best, logprob = step[0]
                if not same(own, best):
                    near = [p for _, text, p in step if text == own]
                    good = bool(near) and logprob - near[0] < NEAR
                    break
            yield f"{count} tokens after {prompt[:12]!r}", good
