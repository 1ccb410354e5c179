"""Shows fresh images to a served model that sees, and counts its right answers by task, with 95 % intervals:

    taper serve VL
    evaluate_vl.py --url http://127.0.0.1:8000 [--samples 200] [--show 5]

Each image goes as a PNG file in a data URL to /v1/chat/completions, with one question. Seeds are not those of training;
the kinds of scenes, and the list of words, are.
"""

import argparse
import base64
import json
import math
import random
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scenes
import torch

TASKS = ["shape", "colour", "describe", "colour of one", "shape of one", "describe two", "side", "count", "count to 9",
         "number", "word", "letters"]


def samples(task, n, seed):
    """(file, question, answer) of `n` scenes that have this task."""
    r, painter, found = random.Random(f"{seed} {task}"), scenes.Painter("cpu"), []
    torch.manual_seed(seed)
    while len(found) < n:
        scene = scenes.Scene(r, r.choice(scenes.SIZES))
        if task in scene.asked:
            arrays = (torch.from_numpy(np.stack([a])) for a in scene.arrays())
            found.append((scenes.png(painter.paint(scene.size, *arrays)[0].numpy()), *scene.asked[task]))
    return found


def ask(url, file, question):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(file).decode()}}
    body = {"messages": [{"role": "user", "content": [image, {"type": "text", "text": question}]}],
            "temperature": 0, "max_tokens": 24}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def interval(right, n, z=1.96):
    """Wilson's."""
    share = right / n
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8000")
    p.add_argument("--samples", type=int, default=200, help="of each task")
    p.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    p.add_argument("--seed", type=int, default=2026)
    p.add_argument("--parallel", type=int, default=8)
    p.add_argument("--show", type=int, default=0, help="print so many wrong answers of each task")
    a = p.parse_args()
    with ThreadPoolExecutor(a.parallel) as pool:
        for task in a.tasks:
            made = samples(task, a.samples, a.seed)
            said = list(pool.map(lambda s: ask(a.url, s[0], s[1]), made))
            wrong = [(q, x, y) for (_, q, x), y in zip(made, said) if x != (y or "").strip()]
            right = len(made) - len(wrong)
            low, high = interval(right, len(made))
            print(f"{task:<14} {right}/{len(made)}  {100 * right / len(made):.1f} % "
                  f"({100 * low:.1f} to {100 * high:.1f})", flush=True)
            for question, wanted, got in wrong[:a.show]:
                print(f"    {question} {wanted!r}, not {got!r}")


if __name__ == "__main__":
    main()
