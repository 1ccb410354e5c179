"""openai-agents, pydantic-ai and smolagents against a running server: do their loops with tools come to an end?"""
import asyncio
import functools
import json
from typing import Literal

import agents
import openai
import pydantic
import pydantic_ai
import smolagents
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from cases import CASES, Context, by_name, case, parser, run

TOOL_PROMPT = "Please get a weather with city Paris."
TOLD = "The result of get_weather is 48213."


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(max_length=30)
    age: int
    kind: Literal["small", "large"]


class Weather:
    """A tool that remembers how it was called."""

    def __init__(self):
        self.cities = []

    def get_weather(self, city: str) -> str:
        """Get a weather.

        Args:
            city: The city.
        """
        self.cities.append(city)
        return json.dumps({"result": "48213"})


class Clients(Context):
    def __init__(self, args):
        super().__init__(args)
        self.clients = []

    def asynchronous(self):
        client = openai.AsyncOpenAI(base_url=self.args.base_url, api_key=self.args.api_key, max_retries=0, timeout=120)
        self.clients.append(client)
        return client

    def pydantic_models(self):
        for model in OpenAIChatModel, PydanticResponsesModel:
            yield model(self.model, provider=OpenAIProvider(openai_client=self.asynchronous()))


def in_one_loop(f):
    """A case of a coroutine: its clients keep their connections, and these belong to one event loop."""
    async def whole(c):
        try:
            await f(c)
        finally:
            for client in c.clients:
                await client.close()
            c.clients.clear()

    @functools.wraps(f)
    def inner(c):
        asyncio.run(whole(c))

    return inner


async def agents_tool_loop(c, model, **fields):
    weather = Weather()
    agent = agents.Agent(
        name="A", model=model, tools=[agents.function_tool(weather.get_weather)],
        model_settings=agents.ModelSettings(temperature=0, max_tokens=200, **fields))
    result = await agents.Runner.run(agent, TOOL_PROMPT)
    assert result.final_output == TOLD and weather.cities == ["Paris"], result
    kinds = [item.type for item in result.new_items if item.type != "reasoning_item"]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"], kinds

    result = agents.Runner.run_streamed(agent, TOOL_PROMPT)
    events = [event async for event in result.stream_events()]
    deltas = [event.data.delta for event in events if event.type == "raw_response_event"
              and event.data.type == "response.output_text.delta"]
    assert len(deltas) > 2 and "".join(deltas) == result.final_output == TOLD, deltas
    assert weather.cities == ["Paris"] * 2


@case
@in_one_loop
async def agents_responses(c):
    """Responses are the default of openai-agents."""
    agents.set_default_openai_client(c.asynchronous(), use_for_tracing=False)
    await agents_tool_loop(c, c.model)
    await agents_tool_loop(c, OpenAIResponsesModel(c.model, c.asynchronous()), store=False, truncation="auto")


@case
@in_one_loop
async def agents_chat(c):
    await agents_tool_loop(c, OpenAIChatCompletionsModel(c.model, c.asynchronous()))


@case
@in_one_loop
async def agents_output_type(c):
    for model in OpenAIResponsesModel, OpenAIChatCompletionsModel:
        agent = agents.Agent(name="A", model=model(c.model, c.asynchronous()), output_type=Person,
                             model_settings=agents.ModelSettings(temperature=1, max_tokens=600))
        result = await agents.Runner.run(agent, "Describe a person.")
        assert isinstance(result.final_output, Person), result


@case
@in_one_loop
async def agents_handoff(c):
    """A handoff is a tool call too; here it is forced."""
    second = agents.Agent(name="second", model=OpenAIResponsesModel(c.model, c.asynchronous()))
    first = agents.Agent(name="first", model=second.model, handoffs=[second],
                         model_settings=agents.ModelSettings(tool_choice="transfer_to_second", max_tokens=200))
    result = await agents.Runner.run(first, "Hello!")
    assert result.last_agent is second and result.final_output.strip(), result


@case
@in_one_loop
async def agents_session(c):
    session = agents.SQLiteSession("s")
    agent = agents.Agent(name="A", model=OpenAIResponsesModel(c.model, c.asynchronous()))
    first = await agents.Runner.run(agent, "Hello!", session=session)
    second = await agents.Runner.run(agent, "Thanks!", session=session)
    usage = [result.context_wrapper.usage.input_tokens for result in (first, second)]
    assert usage[1] > usage[0] > 0, usage


@case
@in_one_loop
async def pydantic_ai_tools(c):
    for model in c.pydantic_models():
        weather = Weather()
        agent = pydantic_ai.Agent(model, tools=[weather.get_weather],
                                  model_settings={"max_tokens": 200, "temperature": 0})
        result = await agent.run(TOOL_PROMPT)
        assert result.output == TOLD and weather.cities == ["Paris"], result
        parts = [part for message in result.all_messages() for part in message.parts]
        [call] = [part for part in parts if isinstance(part, ToolCallPart)]
        [returned] = [part for part in parts if isinstance(part, ToolReturnPart)]
        assert call.tool_call_id == returned.tool_call_id, parts
        again = await agent.run("Thanks!", message_history=result.all_messages())
        assert again.output and again.usage.input_tokens > 0, again

        async with agent.run_stream(TOOL_PROMPT) as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
        assert len(pieces) > 2 and "".join(pieces) == TOLD, pieces


@case
@in_one_loop
async def pydantic_ai_outputs(c):
    for model in c.pydantic_models():
        for wanted in Person, pydantic_ai.NativeOutput(Person):
            agent = pydantic_ai.Agent(model, output_type=wanted, retries=0,
                                      model_settings={"max_tokens": 600, "temperature": 1})
            result = await agent.run("Describe a person.")
            assert isinstance(result.output, Person), result


@case
def smolagents_tools(c):
    """Every step must call a tool. The first is the prompt's, and the second has the final answer's alone."""
    model = smolagents.OpenAIServerModel(c.model, api_base=c.args.base_url, api_key=c.args.api_key,
                                         temperature=0, max_tokens=300)
    for streams in False, True:
        weather = Weather()
        agent = smolagents.ToolCallingAgent(
            tools=[smolagents.tool(weather.get_weather)], model=model, stream_outputs=streams, max_steps=2,
            verbosity_level=smolagents.LogLevel.OFF, step_callbacks=[lambda _, agent: agent.tools.pop("get_weather", 0)])
        result = agent.run(TOOL_PROMPT, return_full_result=True)
        assert result.state == "success" and weather.cities == ["Paris"], result
        last = agent.memory.steps[-1]
        assert last.tool_calls[0].name == "final_answer" and "48213" in str(last.model_input_messages[-1].content), last
        assert result.token_usage.input_tokens > 100 and result.token_usage.output_tokens > 0, result


def main():
    agents.set_tracing_disabled(True)
    run(by_name(CASES), Clients(parser(__doc__).parse_args()))


if __name__ == "__main__":
    main()
