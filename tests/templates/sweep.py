#!/usr/bin/env python3
"""Renders the chat templates of public packages with Taper and with Hugging Face transformers.

usage: sweep.py RENDER [--packages DIR] [--verbose]

RENDER is the chat crate's example `render`. The templates come from the source packages of
llama-cpp-python and vllm, which are downloaded by name. Each template renders the conversations
below; a prompt must have the same bytes as that of transformers. A template that transformers
renders at least once must start. Needs requirements.txt beside this file.
"""

import argparse
import copy
import datetime
import hashlib
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from transformers.utils.chat_template_utils import _compile_jinja_template

PACKAGES = ["llama-cpp-python", "vllm"]
TIME = 1_709_210_096  # 29 February 2024, 12:34:56 UTC
# Where Taper means to differ: `'...'|safe + text` escapes the text for HTML in Jinja, which no model wants.
UNLIKE = {"meetkai-functionary-medium-v3.1.jinja"}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def call(id, name, **arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    body = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": body}


WEATHER = function(
    "get_weather", "Tells the weather <at> a place & day.",
    {"city": {"type": "string", "description": "The city's name"},
     "days": {"type": "integer", "description": "How many days"},
     "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, ["city"])
SEARCH = function(
    "search", "Searches.",
    {"terms": {"type": "array", "items": {"type": "string"}, "description": "Words"},
     "options": {"type": "object", "properties": {"exact": {"type": "boolean"}}}}, ["terms"])
NULLABLE = function(
    "nullable", "Has a nullable argument.",
    {"limit": {"type": ["integer", "null"], "default": None}}, [])

USER = say("user", "What is the weather in Zürich?  ")
SYSTEM = say("system", "Be brief. ")
ANSWER = say("assistant", "It is sunny, 21.5 °C.")
CALL = say("assistant", "", tool_calls=[call("abcdef123", "get_weather", city="Zürich", days=2)])
RESULT = say("tool", '{"sky": "clear"}', name="get_weather", tool_call_id="abcdef123")
TWO_CALLS = say("assistant", "", tool_calls=[
    call("abcdef123", "get_weather", city="Bern"),
    call("abcdef124", "search", terms=["a", "b"], options={"exact": True})])
RESULT_2 = say("tool", "nothing found", name="search", tool_call_id="abcdef124")
REASONED = say("assistant", "4", reasoning_content="Two and two make four.")


def case(messages, tools=(), prompt=True, **kwargs):
    return {"messages": messages, "tools": list(tools), "add_generation_prompt": prompt,
            "kwargs": kwargs}


CASES = [
    case([USER]),
    case([USER], prompt=False),
    case([SYSTEM, USER]),
    case([USER, ANSWER], prompt=False),
    case([USER, ANSWER, say("user", "And tomorrow?")]),
    case([SYSTEM, USER, ANSWER, say("user", "a"), say("assistant", "b"), say("user", "\nc\n")]),
    case([USER], [WEATHER]),
    case([SYSTEM, USER], [WEATHER, SEARCH]),
    case([USER], [NULLABLE]),
    case([USER, CALL, RESULT], [WEATHER]),
    case([SYSTEM, USER, CALL, RESULT, ANSWER, say("user", "Thanks")], [WEATHER]),
    case([USER, TWO_CALLS, RESULT, RESULT_2], [WEATHER, SEARCH]),
    case([USER, TWO_CALLS, RESULT, RESULT_2, ANSWER], [WEATHER, SEARCH], prompt=False),
    case([say("user", "2 + 2?"), REASONED, say("user", "3 + 3?")]),
    case([say("user", "2 + 2?"), REASONED], prompt=False),
    case([say("user", "2 + 2?"), say("assistant", "<think>\nfour\n</think>\n\n4"),
          say("user", "And 5?")]),
    case([USER], enable_thinking=False),
    case([SYSTEM, USER], enable_thinking=True),
    case([say("user", parts("one ", " two"))]),
    case([say("system", parts("Be brief.")), say("user", parts("one", "two")),
          say("assistant", parts("three")), say("user", "four")]),
    case([USER], reasoning_effort="low"),
]


def templates(folder):
    """All distinct templates in the packages' sources, by path."""
    found = {}
    for package in PACKAGES:
        into = folder / package
        if not into.exists():
            into.mkdir(parents=True)
            subprocess.run([sys.executable, "-m", "unearth", package, "--no-binary", "--download", str(into)],
                           check=True, stdout=subprocess.DEVNULL)
        for archive in sorted(into.glob("*.tar.gz")):
            with tarfile.open(archive) as tar:
                for member in tar:
                    if member.isfile() and member.name.endswith(".jinja"):
                        text = tar.extractfile(member).read().decode("utf-8")
                        found.setdefault(hashlib.sha256(text.encode()).hexdigest(),
                                         (member.name, text))
    return sorted(found.values())


def joined(messages):
    """Parts as one text, for templates that do not go through parts."""
    out = copy.deepcopy(messages)
    for message in out:
        if isinstance(message["content"], list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
    return out


def joined_system(messages):
    return [joined([m])[0] if m["role"] == "system" else m for m in messages]


def as_parts(messages):
    out = copy.deepcopy(messages)
    for message in out:
        if isinstance(message["content"], str):
            message["content"] = parts(message["content"])
    return out


def arguments_as_text(messages):
    out = copy.deepcopy(messages)
    for message in out:
        for one in message.get("tool_calls", []):
            one["function"]["arguments"] = json.dumps(
                one["function"]["arguments"], ensure_ascii=False, separators=(",", ":"))
    return out


def render(template, case, change):
    messages = change(copy.deepcopy(case["messages"]))
    for message in messages:
        if "reasoning_content" in message:
            message["thinking"] = message["reasoning_content"]
    return template.render(
        messages=messages, tools=case["tools"] or None, documents=None,
        add_generation_prompt=case["add_generation_prompt"], **SPECIAL, **case["kwargs"])


def wanted(template, case):
    """Every prompt that transformers gives for a way to write the conversation."""
    has_parts = any(isinstance(m["content"], list) for m in case["messages"])
    changes = [lambda m: m]
    if has_parts:
        changes += [joined, joined_system]
    changes += [arguments_as_text, as_parts]
    prompts = []
    for change in changes:
        try:
            prompts.append(render(template, case, change))
        except Exception as error:  # a template may raise anything
            last = error
    return prompts if prompts else last


def compile(text):
    _compile_jinja_template.cache_clear()
    template = _compile_jinja_template(text)
    now = datetime.datetime.fromtimestamp(TIME, datetime.timezone.utc)
    template.environment.globals["strftime_now"] = now.strftime
    template.globals["strftime_now"] = now.strftime
    return template


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("render")
    parser.add_argument("--packages", type=pathlib.Path, help="keep the packages here")
    parser.add_argument("--verbose", action="store_true", help="show the prompts that differ")
    options = parser.parse_args()
    folder = options.packages or pathlib.Path(tempfile.mkdtemp())
    all_templates = templates(folder)
    taper = subprocess.Popen([options.render], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)
    usable = started = renderings = equal = 0
    for name, text in all_templates:
        try:
            template = compile(text)
            right = [wanted(template, case) for case in CASES]
        except Exception:
            continue
        if all(isinstance(prompts, Exception) for prompts in right):
            continue
        usable += 1
        job = {"template": text, "time": TIME, "cases": CASES}
        taper.stdin.write(json.dumps(job) + "\n")
        taper.stdin.flush()
        answer = json.loads(taper.stdout.readline())
        if answer["error"]:
            print(f"{name}: does not start: {answer['error']}")
            continue
        started += 1
        for i, (prompts, result) in enumerate(zip(right, answer["results"])):
            if isinstance(prompts, Exception):
                continue
            if name.rsplit("/", 1)[-1] in UNLIKE and result.get("prompt"):
                continue
            renderings += 1
            if result.get("prompt") in prompts:
                equal += 1
                continue
            print(f"{name}: conversation {i} differs", result.get("error", ""))
            if options.verbose:
                print("  wanted", json.dumps(prompts[0], ensure_ascii=False))
                print("  got   ", json.dumps(result, ensure_ascii=False))
    taper.stdin.close()
    taper.wait()
    print(f"{len(all_templates)} templates; transformers renders {usable} at least once")
    print(f"{started} of {usable} start; {equal} of {renderings} prompts are equal")
    print(f"{started + equal} passed, {usable - started + renderings - equal} failed")
    return 0 if started == usable and equal == renderings else 1


if __name__ == "__main__":
    sys.exit(main())
