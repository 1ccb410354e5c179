"""LlamaIndex against a running server: does it get what it asks for?"""
import json
from typing import Literal

import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from cases import CASES, Context, by_name, case, parser, run

TOOL_PROMPT = "Please get a weather with city Paris."


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(max_length=30)
    age: int = pydantic.Field(ge=0, le=150)
    kind: Literal["small", "large"]


def get_weather(city: str) -> str:
    """Get a weather."""
    return json.dumps({"result": "48213"})


WEATHER = FunctionTool.from_defaults(get_weather, description="Get a weather.")


class Client(Context):
    def llm(self, **fields):
        fields = {"temperature": 0, "max_tokens": 200, "max_retries": 0, "is_chat_model": True,
                  "is_function_calling_model": True, "context_window": 8192, **fields}
        return OpenAILike(model=self.model, api_base=self.args.base_url, api_key=self.args.api_key, **fields)


def ask(text):
    return [ChatMessage(role="user", content=text)]


@case
def chat(c):
    whole = c.llm().chat(ask("Hello!"))
    assert whole.message.content.strip() and whole.raw.usage.completion_tokens > 0, whole
    pieces = list(c.llm().stream_chat(ask("Hello!")))
    assert len(pieces) > 2 and "".join(piece.delta for piece in pieces) == whole.message.content, pieces
    assert pieces[-1].message.content == whole.message.content, pieces[-1]


@case
def completion(c):
    plain = c.llm(is_chat_model=False, max_tokens=8)
    whole = plain.complete("Rust is").text
    assert whole and "".join(piece.delta for piece in plain.stream_complete("Rust is")) == whole


@case
def tools(c):
    llm = c.llm()
    answer = llm.chat_with_tools([WEATHER], chat_history=ask(TOOL_PROMPT))
    [call] = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather" and call.tool_kwargs == {"city": "Paris"}, call
    *_, last = llm.stream_chat_with_tools([WEATHER], chat_history=ask(TOOL_PROMPT))
    [streamed] = llm.get_tool_calls_from_response(last)
    assert streamed.tool_kwargs == call.tool_kwargs, streamed
    result = ChatMessage(role="tool", content=get_weather("Paris"), additional_kwargs={"tool_call_id": call.tool_id})
    history = [*ask(TOOL_PROMPT), answer.message, result]
    told = llm.chat_with_tools([WEATHER], chat_history=history).message.content
    assert told == "The result of get_weather is 48213.", told
    forced = llm.chat_with_tools([WEATHER], chat_history=ask(TOOL_PROMPT), tool_required=True)
    assert llm.get_tool_calls_from_response(forced)[0].tool_name == "get_weather", forced


@case
def structured(c):
    for native in False, True:
        llm = c.llm(temperature=1, max_tokens=600, should_use_structured_outputs=native)
        answer = llm.as_structured_llm(Person).chat(ask("Describe a person."))
        assert isinstance(answer.raw, Person), answer


def main():
    run(by_name(CASES), Client(parser(__doc__).parse_args()))


if __name__ == "__main__":
    main()
