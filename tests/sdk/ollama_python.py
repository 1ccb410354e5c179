"""Ollama's Python client against a running server: does it find what it expects?"""
import json

import ollama

from cases import CASES, Context, by_name, case, parser, run

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get a weather.",
    "parameters": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}}}
GREEDY = {"temperature": 0}


class Ollama(Context):
    def __init__(self, args):
        super().__init__(args)
        host = args.base_url.removesuffix("/v1")
        self.client = ollama.Client(host=host, headers={"Authorization": f"Bearer {args.api_key}"}, timeout=120)

    def chat(self, text, **fields):
        messages = fields.pop("messages", [{"role": "user", "content": text}])
        return self.client.chat(model=self.model, messages=messages, options=GREEDY | fields.pop("options", {}), **fields)


@case
def answers(c):
    answer = c.chat("What is 12 + 30?", think=False)
    assert "42" in answer.message.content, answer
    assert answer.done and answer.done_reason == "stop"
    assert answer.prompt_eval_count > 5 and answer.eval_count > 0 and answer.total_duration > 0


@case
def streams(c):
    parts = list(c.chat("What is 12 + 30?", think=False, stream=True))
    assert len(parts) > 2 and [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(p.message.content for p in parts) == c.chat("What is 12 + 30?", think=False).message.content


@case
def thinks(c):
    answer = c.chat("What is 12 + 30?", think=True, options={"num_predict": 200})
    assert answer.message.thinking, answer


@case
def limits(c):
    answer = c.chat("Hello", options={"num_predict": 2, "num_ctx": 128, "seed": 1})
    assert answer.done_reason == "length" and answer.eval_count == 2


@case
def generates(c):
    answer = c.client.generate(c.model, "What is 12 + 30?", system="Be brief.", options=GREEDY, think=False)
    assert answer.response and answer.done
    streamed = c.client.generate(c.model, "What is 12 + 30?", system="Be brief.", options=GREEDY, think=False, stream=True)
    assert "".join(part.response for part in streamed) == answer.response
    assert c.client.generate(c.model, "").done_reason == "load"


@case
def structured(c):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"],
              "additionalProperties": False}
    assert set(json.loads(c.chat("A number.", format=schema).message.content)) == {"n"}


@case
def calls_tools(c):
    answer = c.chat("Please get a weather with city Paris.", tools=[WEATHER], think=False)
    call = answer.message.tool_calls[0].function
    assert call.name == "get_weather" and call.arguments["city"] == "Paris", answer
    messages = [{"role": "user", "content": "Please get a weather with city Paris."}, answer.message,
                {"role": "tool", "content": "rain", "tool_name": "get_weather"}]
    assert c.chat("", messages=messages, tools=[WEATHER], think=False).done
    streamed = list(c.chat("Please get a weather with city Paris.", tools=[WEATHER], think=False, stream=True))
    assert [t.function.arguments for part in streamed for t in part.message.tool_calls or []] == [call.arguments]


@case
def models(c):
    listed = c.client.list().models
    assert listed[0].model == c.model and listed[0].size > 0 and listed[0].details.family
    assert c.client.ps().models[0].model == c.model
    shown = c.client.show(c.model)
    assert {"completion", "tools"} <= set(shown.capabilities), shown
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] > 0


@case
def errors(c):
    for status, call in [
        (404, lambda: c.client.chat(model="no-such-model", messages=[{"role": "user", "content": "x"}])),
        (404, lambda: c.client.show("no-such-model")),
        (400, lambda: c.chat("x", options={"mirostat": 2})),
        (400, lambda: c.client.embed(c.model, "text")),
        (404, lambda: c.client.pull("no-such-model")),
    ]:
        try:
            call()
        except ollama.ResponseError as error:
            assert error.status_code == status and isinstance(error.error, str), error
        else:
            raise AssertionError(f"{status} was expected")


if __name__ == "__main__":
    run(by_name(CASES), Ollama(parser(__doc__).parse_args()))
