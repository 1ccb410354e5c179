"""The OpenAI Python SDK's Responses API against a running server: does it find what it expects?"""
import json
import time
from typing import Literal

import openai
import pydantic

from cases import CASES, by_name, case, parser, run

TOOLS = [{"type": "function", "name": "get_weather", "description": "Get a weather.", "strict": False,
          "parameters": {"type": "object", "required": ["city"],
                         "properties": {"city": {"type": "string", "maxLength": 20}}}}]
TOOL_PROMPT = "Please get a weather with city Paris."


class Context:
    def __init__(self, args):
        self.args = args
        self.client = openai.OpenAI(base_url=args.base_url, api_key=args.api_key, max_retries=0, timeout=120)
        self.model = args.model or self.client.models.list().data[0].id

    def fields(self, input="Hello!", **fields):
        fields.setdefault("max_output_tokens", 64)
        fields.setdefault("temperature", 0)
        return {"model": self.model, "input": input, **fields}

    def create(self, *args, **fields):
        return self.client.responses.create(**self.fields(*args, **fields))


@case
def response(c):
    answer = c.create(instructions="Be nice.", metadata={"a": "b"}, top_p=0.9)
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.status == "completed", answer
    assert answer.output_text.strip() and answer.output[-1].type == "message", answer
    assert answer.metadata == {"a": "b"} and answer.instructions == "Be nice." and answer.model == c.model
    usage = answer.usage
    assert usage.input_tokens > 3 and usage.output_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens >= 0 and usage.output_tokens_details.reasoning_tokens >= 0
    cut = c.create(max_output_tokens=1)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut


@case
def stream(c):
    whole = c.create()
    events = list(c.create(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:2] == ["response.created", "response.in_progress"] and types[-1] == "response.completed", types
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    with c.client.responses.stream(**c.fields()) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == whole.output_text


@case
def conversation(c):
    first = c.create("My name is Ann.")
    second = c.create("Hello!", previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.usage.input_tokens > first.usage.input_tokens
    assert c.client.responses.retrieve(second.id).output_text == second.output_text
    items = list(c.client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.type for item in items] == ["message"] * 3, items
    assert items[0].content[0].text == "My name is Ann." and items[1].id == first.output[0].id, items
    c.client.responses.delete(second.id)
    try:
        c.create(previous_response_id=second.id)
        raise AssertionError("it was deleted")
    except openai.NotFoundError as error:
        assert error.param == "previous_response_id" and error.code == "response_not_found", error
    user = [{"role": "user", "content": text} for text in ("My name is Ann.", "Hello!")]
    again = c.create([user[0], *first.output, user[1]])
    assert again.output_text == second.output_text


@case
def tools_round_trip(c):
    answer = c.create(TOOL_PROMPT, tools=TOOLS, max_output_tokens=200)
    call = answer.output[-1]
    assert call.type == "function_call" and call.name == "get_weather", answer
    assert json.loads(call.arguments) == {"city": "Paris"}, call
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"result": "sunny"}'}
    chained = c.create([result], previous_response_id=answer.id, tools=TOOLS)
    assert chained.status == "completed" and chained.output_text, chained
    own = c.create([{"role": "user", "content": TOOL_PROMPT}, *answer.output, result], tools=TOOLS, store=False)
    assert own.output_text == chained.output_text
    with c.client.responses.stream(**c.fields(TOOL_PROMPT, tools=TOOLS, max_output_tokens=200)) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response().output[-1]
    assert "".join(pieces) == final.arguments == call.arguments, pieces


@case
def forced_tools(c):
    for choice in ["required", {"type": "function", "name": "get_weather"}]:
        answer = c.create("Hello!", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_output_tokens=300)
        assert [item.type for item in answer.output][-1] == "function_call", answer
        json.loads(answer.output[-1].arguments)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=30)
    age: int
    active: bool
    kind: Literal["small", "large"]


@case
def parse(c):
    answer = c.client.responses.parse(
        text_format=Person, **c.fields("Describe a person.", temperature=1, max_output_tokens=600))
    assert isinstance(answer.output_parsed, Person), answer
    answer = c.create("Describe a person.", text={"format": {"type": "json_object"}}, max_output_tokens=600)
    if answer.status == "completed":
        assert isinstance(json.loads(answer.output_text), dict), answer


@case
def reasoning(c):
    question = "What is 2 plus 3?"
    fields = {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    answer = c.create(question, max_output_tokens=400, store=False, **fields)
    assert answer.reasoning.effort == "low" and answer.output[-1].type in ("message", "reasoning"), answer
    for item in answer.output:
        if item.type == "reasoning":
            assert item.summary[0].text and item.encrypted_content, item
    history = [{"role": "user", "content": question}, *answer.output, {"role": "user", "content": "Really?"}]
    assert c.create(history, store=False, **fields).status in ("completed", "incomplete")


@case
def background(c):
    answer = c.create(background=True)
    while answer.status in ("queued", "in_progress"):
        time.sleep(0.1)
        answer = c.client.responses.retrieve(answer.id)
    assert answer.status == "completed" and answer.output_text == c.create().output_text, answer
    slow = c.create(background=True, max_output_tokens=500, tools=TOOLS, tool_choice="required")
    try:
        assert c.client.responses.cancel(slow.id).status == "cancelled"
    except openai.BadRequestError as error:
        assert error.code == "not_in_progress", error


@case
def logprobs(c):
    answer = c.create(include=["message.output_text.logprobs"], top_logprobs=3)
    part = answer.output[-1].content[0]
    assert part.logprobs and all(len(at.top_logprobs) == 3 for at in part.logprobs), part


@case
def errors(c):
    for named, fields in [
        ("temperature", {"temperature": 9}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("input[0].content[0]", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
    ]:
        try:
            c.client.responses.create(**c.fields() | fields)
            raise AssertionError(f"{named} should have failed")
        except openai.BadRequestError as error:
            assert error.param == named, error


def main():
    run(by_name(CASES), Context(parser(__doc__).parse_args()))


if __name__ == "__main__":
    main()
