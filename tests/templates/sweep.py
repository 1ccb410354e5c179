#!/usr/bin/env python3
"""Renders the chat templates of public packages with Taper and with Hugging Face transformers.

usage: sweep.py RENDER [--packages DIR] [--verbose]

RENDER is the chat crate's example `render`. The templates come from the source packages of
llama-cpp-python and vllm, which are downloaded by name: files of their own, string literals in
Python and C++, and GGUF files. Each template renders the conversations below; a prompt must have
the same bytes as that of transformers. A template that transformers renders at least once must
start. Where a template's formats of calls and reasoning are known, they must be found. Needs
requirements.txt beside this file.
"""

import argparse
import ast
import copy
import datetime
import hashlib
import itertools
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

from transformers.utils.chat_template_utils import _compile_jinja_template

PACKAGES = ["llama-cpp-python", "vllm"]
TIME = 1_709_210_096  # 29 February 2024, 12:34:56 UTC
# Where Taper means to differ: `'...'|safe + text` escapes the text for HTML in Jinja, which no model wants.
UNLIKE = {"meetkai-functionary-medium-v3.1.jinja"}
# The formats of tool calls and of reasoning that templates show by themselves.
FORMATS = {
    "ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "Cohere2MoE": ("cohere_command4", "cohere_command3"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere_command3", "cohere_command3"),
    "GLM-4.6": ("glm45", "qwen3"),
    "GigaChat3-10B-A1.8B": ("gigachat3", "none"),
    "Kimi-K2-Thinking": ("kimi_k2", "qwen3"),
    "LFM2.5-8B-A1B": ("lfm2", "qwen3"),
    "MiniMax-M1": ("minimax", "none"),
    "MiniMax-M2": ("minimax_m2", "qwen3"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", "none"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen3_coder", "qwen3"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", "none"),
    "Qwen-QwQ-32B": ("hermes", "qwen3"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", "none"),
    "Qwen-Qwen3-0.6B": ("hermes", "qwen3"),
    "Qwen3-Coder": ("qwen3_coder", "none"),
    "StepFun3.5-Flash": ("qwen3_coder", "qwen3"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "qwen3"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v32", "qwen3"),
    "fireworks-ai-llama-3-firefunction-v2": ("phi4_mini_json", "none"),
    "google-gemma-2-2b-it": ("none", "none"),
    "google-gemma-4-31B-it": ("gemma4", "gemma4"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "qwen3"),
    "ibm-granite-granite-4.0": ("granite4", "none"),
    "llama-cpp-deepseek-r1": ("deepseek_v3", "qwen3"),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", "none"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
    "openai-gpt-oss-120b": ("openai", "openai_gptoss"),
    "tool_chat_template_functiongemma": ("functiongemma", "none"),
    "tool_chat_template_granite_20b_fc": ("granite-20b-fc", "none"),
    "tool_chat_template_internlm2_tool": ("internlm", "none"),
    "tool_chat_template_llama3.2_pythonic": ("pythonic", "none"),
    "tool_chat_template_llama4_json": ("llama4_json", "none"),
    "tool_chat_template_llama4_pythonic": ("llama4_pythonic", "none"),
    "tool_chat_template_phi4_mini": ("phi4_mini_json", "none"),
}
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


def is_template(text):
    return "{%" in text and "message" in text


def in_python(source):
    """String literals, which Python joins where they stand side by side."""
    try:
        nodes = ast.walk(ast.parse(source))
        yield from (node.value for node in nodes
                    if isinstance(node, ast.Constant) and isinstance(node.value, str))
    except SyntaxError:
        return


ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
RAW = re.compile(r'R"(\w*)\((.*?)\)\1"', re.S)
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')


def in_cpp(source):
    """String literals, raw or with escapes, joined where they stand side by side."""
    yield from (match[2] for match in RAW.finditer(source))
    for match in QUOTED.finditer(RAW.sub("", source)):
        inner = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0]))
        yield re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), inner)


def in_gguf(data):
    """The text of the key tokenizer.chat_template: behind it the type, a string, and the length."""
    key = b"tokenizer.chat_template\x08\0\0\0"
    at = data.find(key) + len(key)
    if at >= len(key):
        length = int.from_bytes(data[at:at + 8], "little")
        yield data[at + 8:at + 8 + length].decode("utf-8", "replace")


def in_file(name, read):
    if name.endswith(".jinja"):
        return [read().decode("utf-8")]
    if name.endswith(".gguf"):
        return in_gguf(read())
    if name.endswith(".py"):
        return filter(is_template, in_python(read().decode("utf-8", "replace")))
    if name.endswith((".cpp", ".h", ".hpp")):
        source = read().decode("utf-8", "replace")
        return filter(is_template, in_cpp(source)) if is_template(source) else []
    return []


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
                    if not member.isfile():
                        continue
                    read = lambda: tar.extractfile(member).read()
                    for text in in_file(member.name, read):
                        found.setdefault(hashlib.sha256(text.encode()).hexdigest(),
                                         (member.name, text))
    return sorted(found.values())


def joined(messages, roles):
    """Parts as one text, for templates that do not go through those of these roles."""
    out = copy.deepcopy(messages)
    for message in out:
        if isinstance(message["content"], list) and message["role"] in roles:
            message["content"] = "\n".join(part["text"] for part in message["content"])
    return out


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
        roles = ["system", "user", "assistant"]
        subsets = [s for n in (1, 2, 3) for s in itertools.combinations(roles, n)]
        changes += [lambda messages, roles=roles: joined(messages, roles) for roles in subsets]
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
    usable = started = renderings = equal = told = known = 0
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
        right_formats = FORMATS.get(pathlib.PurePath(name).name.removesuffix(".jinja"))
        if right_formats:
            told += 1
            if tuple(answer["formats"]) == right_formats:
                known += 1
            else:
                print(f"{name}: has the formats {answer['formats']}, not {right_formats}")
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
    print(f"{known} of {told} formats are those of the model")
    passed, checks = started + equal + known, usable + renderings + told
    print(f"{passed} passed, {checks - passed} failed")
    return 0 if passed == checks else 1


if __name__ == "__main__":
    sys.exit(main())
