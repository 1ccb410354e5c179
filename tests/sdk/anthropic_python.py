"""Anthropic's Python SDK against a running server: does it find what it expects?"""
import json
import urllib.request
from typing import Literal

import anthropic
import pydantic

from cases import CASES, by_name, case, parser, run

TOOLS = [{"name": "get_weather", "description": "Get a weather.", "cache_control": {"type": "ephemeral"},
          "input_schema": {"type": "object", "required": ["city"],
                           "properties": {"city": {"type": "string", "maxLength": 20}}}}]
TOOL_PROMPT = "Please get a weather with city Paris."


def ask(text):
    return [{"role": "user", "content": text}]


class Context:
    def __init__(self, args):
        self.args = args
        self.client = anthropic.Anthropic(base_url=args.base_url, api_key=args.api_key, max_retries=0, timeout=120)
        self.model = args.model or first_model(args)

    def fields(self, text="Hello!", **fields):
        fields.setdefault("max_tokens", 64)
        fields.setdefault("messages", ask(text))
        # Newer SDKs have no words for them.
        sampling = {name: fields.pop(name) for name in ("temperature", "top_k", "top_p") if name in fields}
        return {"model": self.model, "extra_body": {"temperature": 0} | sampling, **fields}

    def send(self, *args, **fields):
        return self.client.messages.create(**self.fields(*args, **fields))


def first_model(args):
    request = urllib.request.Request(args.base_url + "/v1/models", headers={"authorization": f"Bearer {args.api_key}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["data"][0]["id"]


def fails(kind, named, call):
    try:
        call()
    except kind as error:
        assert error.body["type"] == "error" and named in error.body["error"]["message"], error.body
        assert error.request_id, error
        return error
    raise AssertionError("it should have failed")


def shown(message):
    return [(block.type, getattr(block, block.type)) for block in message.content]


@case
def message(c):
    answer = c.send(system="Be nice.", top_k=5, top_p=0.9, metadata={"user_id": "u"})
    assert answer.type == "message" and answer.role == "assistant" and answer.model == c.model
    assert [block.type for block in answer.content] == ["text"] and answer.content[0].text.strip(), answer
    assert answer.stop_reason == "end_turn" and answer.stop_sequence is None, answer
    usage = answer.usage
    assert usage.output_tokens > 0 and usage.input_tokens + usage.cache_read_input_tokens > 3, usage
    assert answer._request_id
    count = c.client.messages.count_tokens(model=c.model, messages=ask("Hello!"), system="Be nice.")
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, count


@case
def stream(c):
    whole = c.send()
    with c.client.messages.stream(**c.fields()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and shown(final) == shown(whole), (text, whole)
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == whole.usage.output_tokens, final
    types = [event.type for event in c.send(stream=True)]
    assert types[:2] == ["message_start", "content_block_start"], types
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"], types


@case
def stops(c):
    text = c.send().content[0].text
    cut = c.send(max_tokens=1)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 1, cut
    stop = text[len(text) // 2:][:4]
    stopped = c.send(stop_sequences=[stop])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop, stopped
    assert "".join(block.text for block in stopped.content) == text[:text.index(stop)]


@case
def tools_round_trip(c):
    answer = c.send(TOOL_PROMPT, tools=TOOLS, max_tokens=200)
    assert answer.stop_reason == "tool_use", answer
    call = answer.content[-1]
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"}), call
    messages = ask(TOOL_PROMPT) + [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": '{"result": "sunny"}'}]},
    ]
    final = c.send(messages=messages, tools=TOOLS, max_tokens=100)
    assert final.stop_reason == "end_turn" and final.content[0].text, final


@case
def tools_streamed(c):
    with c.client.messages.stream(**c.fields(TOOL_PROMPT, tools=TOOLS, max_tokens=200)) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and final.content[-1].input == {"city": "Paris"}, final
    assert json.loads("".join(pieces)) == {"city": "Paris"}, pieces


@case
def forced_tools(c):
    for choice in [{"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}]:
        answer = c.send("Hello!", tools=TOOLS, tool_choice=choice, max_tokens=300)
        assert [block.type for block in answer.content][-1] == "tool_use", answer
        assert isinstance(answer.content[-1].input["city"], str), answer
    answer = c.send(TOOL_PROMPT, tools=TOOLS, tool_choice={"type": "none"})
    assert all(block.type == "text" for block in answer.content), answer


@case
def tool_runner(c):
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get a weather."""
        cities.append(city)
        return "sunny"

    cities = []
    fields = c.fields(TOOL_PROMPT, max_tokens=200)
    # The server keeps no conversations.
    runner = c.client.beta.messages.tool_runner(tools=[get_weather], thread=False, **fields)
    final = runner.until_done()
    assert cities == ["Paris"] and final.stop_reason == "end_turn", (cities, final)


class Person(pydantic.BaseModel):
    # The SDK leaves lengths out of the schema, and the demo model would never end.
    name: Literal["Ann", "Bob"]
    active: bool
    kind: Literal["small", "large"]


@case
def parse(c):
    answer = c.client.messages.parse(output_format=Person, **c.fields("Describe a person.", max_tokens=600))
    assert isinstance(answer.parsed_output, Person), answer


@case
def thinking(c):
    fields = c.fields("What is 2 plus 3?", max_tokens=400, thinking={"type": "adaptive"})
    answer = c.client.messages.create(**fields)
    kinds = [block.type for block in answer.content]
    assert kinds in (["thinking", "text"], ["text"]), answer
    with c.client.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert shown(final) == shown(answer), (final, answer)
    if kinds[0] == "thinking":
        assert answer.content[0].thinking and answer.content[0].signature, answer
        assert answer.usage.output_tokens_details.thinking_tokens > 0, answer.usage
    again = ask("What is 2 plus 3?") + [{"role": "assistant", "content": answer.content}] + ask("Really?")
    assert c.send(messages=again, thinking={"type": "disabled"}).stop_reason in ("end_turn", "max_tokens")


@case
def claude_code(c):
    cached = {"cache_control": {"type": "ephemeral"}}
    answer = c.client.beta.messages.create(
        **c.fields(
            max_tokens=32000,
            system=[{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"},
                    {"type": "text", "text": "You are an agent.", **cached}],
            messages=[{"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"},
                                                   {"type": "text", "text": "Hello!", **cached}]}],
            tools=[dict(TOOLS[0], name=f"tool_{i}") for i in range(40)],
            metadata={"user_id": "user_1_session_2"},
            thinking={"type": "adaptive"},
            output_config={"effort": "medium"},
            stream=True,
        ),
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
    )
    types = [event.type for event in answer]
    assert types[0] == "message_start" and types[-1] == "message_stop", types


@case
def errors(c):
    fails(anthropic.BadRequestError, "temperature must", lambda: c.send(temperature=9))
    fails(anthropic.NotFoundError, "nope", lambda: c.client.messages.create(**c.fields() | {"model": "nope"}))
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    fails(anthropic.BadRequestError, "'messages[0].content[0]'", lambda: c.send([image]))
    fails(anthropic.BadRequestError, "prompt is too long", lambda: c.send("many words " * 200_000))
    if c.args.api_key != "none":
        wrong = anthropic.Anthropic(base_url=c.args.base_url, api_key="wrong", max_retries=0)
        fails(anthropic.AuthenticationError, "API key", lambda: wrong.messages.create(**c.fields()))
        bearer = anthropic.Anthropic(base_url=c.args.base_url, auth_token=c.args.api_key, max_retries=0)
        assert bearer.messages.create(**c.fields()).content


def main():
    args = parser(__doc__).parse_args()
    args.base_url = args.base_url.removesuffix("/v1")
    run(by_name(CASES), Context(args))


if __name__ == "__main__":
    main()
