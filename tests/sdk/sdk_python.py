"""The OpenAI Python SDK against a running server: does it find what it expects?"""
import io
import json
import math
import time
import urllib.request
import wave
from typing import Annotated, Literal

import openai
import pydantic

from cases import CASES, by_name, case, parser, run

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get a weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
TOOL_PROMPT = "Please get a weather with city Paris."


def ask(text):
    return [{"role": "user", "content": text}]


class Context:
    def __init__(self, args):
        self.args = args
        self.client = openai.OpenAI(base_url=args.base_url, api_key=args.api_key, max_retries=0, timeout=120)
        self.model = args.model or self.client.models.list().data[0].id

    def chat(self, text="Hello!", **fields):
        fields.setdefault("max_tokens", 64)
        fields.setdefault("temperature", 0)
        messages = fields.pop("messages", None) or ask(text)
        return self.client.chat.completions.create(model=self.model, messages=messages, **fields)


@case
def models(c):
    assert c.model in [m.id for m in c.client.models.list().data]
    assert c.client.models.retrieve(c.model).object == "model"


def embeddings(c):
    """Of a server with an embedding model: `--embeddings`."""
    texts = ["a cat", "a car", "a kitten"]
    plain = c.client.embeddings.create(model=c.model, input=texts, encoding_format="float")
    coded = c.client.embeddings.create(model=c.model, input=texts)  # the SDK asks for base64 and decodes it
    assert [d.index for d in plain.data] == [0, 1, 2] and plain.object == "list" and plain.model == c.model
    for a, b in zip(plain.data, coded.data, strict=True):
        assert max(abs(x - y) for x, y in zip(a.embedding, b.embedding, strict=True)) < 1e-6
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 0
    short = c.client.embeddings.create(model=c.model, input="a cat", dimensions=8, encoding_format="float")
    assert len(short.data[0].embedding) == 8
    assert len(c.client.embeddings.create(model=c.model, input=[[5, 6], [7]]).data) == 2
    try:
        c.client.embeddings.create(model=c.model, input="a", dimensions=1 << 20)
        raise AssertionError("too many dimensions")
    except openai.BadRequestError as error:
        assert error.param == "dimensions", error


@case
def chat(c):
    answer = c.chat()
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    assert choice.message.role == "assistant" and choice.message.content.strip(), choice
    assert choice.finish_reason == "stop", choice
    usage = answer.usage
    assert usage.prompt_tokens >= 3 and usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert usage.completion_tokens_details.reasoning_tokens >= 0


@case
def stream(c):
    whole = c.chat().choices[0].message.content
    chunks = list(c.chat(stream=True, stream_options={"include_usage": True}))
    assert len({k.id for k in chunks}) == 1 and len({k.created for k in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(k.choices[0].delta.role is None for k in chunks[1:-1])
    assert all(k.usage is None for k in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all(k.choices[0].finish_reason is None for k in chunks[:-2])
    assert "".join(k.choices[0].delta.content or "" for k in chunks[:-1]) == whole


@case
def tools_round_trip(c):
    answer = c.chat(TOOL_PROMPT, tools=TOOLS, max_tokens=200)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.function.name == "get_weather", call
    assert json.loads(call.function.arguments) == {"city": "Paris"}, call
    messages = ask(TOOL_PROMPT) + [
        choice.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": '{"result": "sunny"}'},
    ]
    final = c.chat(messages=messages, tools=TOOLS, max_tokens=100).choices[0]
    assert final.finish_reason == "stop" and final.message.content, final


@case
def tools_streamed(c):
    name, arguments, ids, finish = "", "", [], None
    for chunk in c.chat(TOOL_PROMPT, tools=TOOLS, max_tokens=200, stream=True):
        choice = chunk.choices[0]
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            ids += [call.id] if call.id else []
            name += call.function.name or ""
            arguments += call.function.arguments or ""
        finish = choice.finish_reason or finish
    assert (name, finish, len(ids)) == ("get_weather", "tool_calls", 1), (name, finish, ids)
    assert json.loads(arguments) == {"city": "Paris"}, arguments


class Person(pydantic.BaseModel):
    # Small models do not end strings that need no end.
    name: Annotated[str, pydantic.Field(max_length=20)]
    age: Annotated[int, pydantic.Field(ge=0, le=150)]
    active: bool
    kind: Literal["small", "large"]


@case
def parse(c):
    answer = c.client.chat.completions.parse(
        model=c.model, messages=ask("Describe a person."), response_format=Person, temperature=1, max_tokens=400)
    assert isinstance(answer.choices[0].message.parsed, Person), answer
    tool = openai.pydantic_function_tool(Person, name="save_person")
    answer = c.client.chat.completions.parse(
        model=c.model, messages=ask("Save a person."), tools=[tool], tool_choice="required", temperature=1,
        parallel_tool_calls=False, max_tokens=400)
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Person), answer


@case
def parse_streamed(c):
    with c.client.chat.completions.stream(
            model=c.model, messages=ask("Describe a person."), response_format=Person, max_tokens=400) as s:
        for _ in s:
            pass
        assert isinstance(s.get_final_completion().choices[0].message.parsed, Person)


@case
def schema_errors(c):
    schema = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    error = raises(openai.BadRequestError, lambda: c.chat(response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}))
    assert error.code == "unsupported_schema" and "#/properties/a/not" in str(error), error


@case
def stream_helper(c):
    with c.client.chat.completions.stream(model=c.model, messages=ask("Hello!"), temperature=0, max_tokens=64) as s:
        for _ in s:
            pass
        final = s.get_final_completion()
    assert final.choices[0].message.content == c.chat().choices[0].message.content


@case
def several_choices(c):
    answer = c.chat("Tell me a joke.", n=3, temperature=1.0, seed=1, max_tokens=16)
    assert [k.index for k in answer.choices] == [0, 1, 2]
    seen = {k.choices[0].index for k in c.chat(n=2, stream=True, max_tokens=8)}
    assert seen == {0, 1}


@case
def seed_is_reproducible(c):
    text = "Continue this text: The borrow checker makes sure that references"
    draw = lambda seed: c.chat(text, temperature=1.5, seed=seed, max_tokens=24).choices[0].message.content
    assert draw(42) == draw(42)
    assert len({draw(seed) for seed in range(6)}) > 1


@case
def stop_strings(c):
    text = c.chat().choices[0].message.content
    stop = text[len(text) // 2:][:3]
    choice = c.chat(stop=stop).choices[0]
    assert stop not in choice.message.content and choice.finish_reason == "stop"
    assert choice.message.content == text[:text.index(stop)], (text, stop, choice)
    pieces = [k.choices[0].delta.content or "" for k in c.chat(stop=[stop, "\0"], stream=True)]
    assert "".join(pieces) == text[:text.index(stop)]


@case
def max_tokens(c):
    for field in ("max_tokens", "max_completion_tokens"):
        answer = c.client.chat.completions.create(
            model=c.model, messages=ask("Count to ten."), temperature=0, **{field: 3})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3, answer.usage


@case
def logprobs(c):
    answer = c.chat(logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert 0 < len(entries) <= answer.usage.completion_tokens
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        best = [t.logprob for t in entry.top_logprobs]
        assert best == sorted(best, reverse=True)
        # Greedy: the chosen token is the likeliest.
        assert abs(best[0] - entry.logprob) < 1e-4, entry
    text = b"".join(bytes(e.bytes) for e in entries).decode()
    assert answer.choices[0].message.content.strip() in text


@case
def completions(c):
    fields = {"model": c.model, "prompt": "Rust is", "max_tokens": 5, "temperature": 0}
    answer = c.client.completions.create(**fields, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert choice.text.startswith("Rust is") and len(choice.text) > len("Rust is")
    assert choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset)
    streamed = "".join(k.choices[0].text for k in c.client.completions.create(**fields, stream=True))
    assert "Rust is" + streamed == choice.text, (streamed, choice.text)
    two = c.client.completions.create(**{**fields, "prompt": ["Rust is", "A string"]})
    assert [k.index for k in two.choices] == [0, 1]


@case
def cancel_in_the_middle(c):
    stream = c.chat("Count to ten.", stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
    for i, _ in enumerate(stream):
        if i == 3:
            break
    stream.close()
    root = c.args.base_url.rsplit("/v1", 1)[0]
    for _ in range(50):
        page = urllib.request.urlopen(root + "/metrics").read().decode()
        running = [l for l in page.splitlines() if l.startswith("vllm:num_requests_running{")]
        if float(running[0].split()[-1]) == 0:
            return
        time.sleep(0.1)
    raise AssertionError("still running 5 s after the client went away")


def raises(kind, f):
    try:
        f()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


@case
def typed_errors(c):
    create = c.client.chat.completions.create
    error = raises(openai.NotFoundError, lambda: create(model="no-such-model", messages=ask("x")))
    assert error.code == "model_not_found", error
    error = raises(openai.BadRequestError, lambda: c.chat(temperature=9))
    assert error.param == "temperature" and error.code == "invalid_value", error
    error = raises(openai.BadRequestError, lambda: c.chat(extra_body={"frobnicate": 1}))
    assert error.param == "frobnicate" and error.code == "unknown_parameter", error
    error = raises(openai.BadRequestError, lambda: c.chat("word " * 400_000))
    assert error.code == "context_length_exceeded", error


@case
def wrong_key(c):
    if c.args.api_key == "none":
        return
    client = openai.OpenAI(base_url=c.args.base_url, api_key="wrong", max_retries=0)
    error = raises(openai.AuthenticationError, client.models.list)
    assert error.code == "invalid_api_key", error


def tone(seconds):
    """A WAV file."""
    data = bytearray()
    for i in range(16000 * seconds):
        data += int(8000 * math.sin(i * i / 3e5)).to_bytes(2, "little", signed=True)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(bytes(data))
    return ("tone.wav", file.getvalue())


def speech(c):
    """Of a server with a model for speech: `--speech`."""
    create, file = c.client.audio.transcriptions.create, tone(35)
    fields = {"model": c.model, "file": file, "language": "en"}
    plain = create(**fields)
    assert plain.usage.type == "duration" and plain.usage.seconds == 35, plain
    full = create(**fields, response_format="verbose_json", timestamp_granularities=["segment"])
    assert full.text == plain.text and full.language == "english" and float(full.duration) == 35, full
    assert all(s.start <= s.end and s.no_speech_prob <= 1 for s in full.segments), full
    assert create(**fields, response_format="text") == plain.text + "\n"
    assert create(**fields, response_format="vtt").startswith("WEBVTT")
    events = list(create(**fields, stream=True))
    assert events[-1].type == "transcript.text.done" and events[-1].text == plain.text, events
    assert "".join(e.delta for e in events[:-1]).strip() == plain.text, events
    assert c.client.audio.translations.create(model=c.model, file=file).text is not None
    error = raises(openai.BadRequestError, lambda: create(**{**fields, "file": ("x.mp3", b"no sound")}))
    assert error.code == "invalid_audio" and error.param == "file", error
    words = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
    error = raises(openai.BadRequestError, lambda: create(**fields, **words))
    assert error.code == "unsupported_value", error


def main():
    options = parser(__doc__)
    options.add_argument("--embeddings", action="store_true", help="the server has an embedding model")
    options.add_argument("--speech", action="store_true", help="the server has a model for speech")
    context = Context(options.parse_args())
    special = embeddings if context.args.embeddings else speech if context.args.speech else None
    run(by_name([models, special, wrong_key] if special else CASES), context)


if __name__ == "__main__":
    main()
