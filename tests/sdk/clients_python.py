"""LangChain, LiteLLM with its proxy, and llm against a running server: do they get what they ask for?"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for prices

import litellm
import openai
import pydantic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from cases import CASES, Context, by_name, case, parser, run

TOOL_PROMPT = "Please get a weather with city Paris."
TOLD = "The result of get_weather is 48213."
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get a weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(max_length=30)
    age: int = pydantic.Field(ge=0, le=150)
    kind: Literal["small", "large"]


@tool
def get_weather(city: str) -> str:
    """Get a weather."""
    return json.dumps({"result": "48213"})


class Clients(Context):
    def langchain(self, **fields):
        fields = {"temperature": 0, "max_tokens": 200, "max_retries": 0, **fields}
        return ChatOpenAI(model=self.model, base_url=self.args.base_url, api_key=self.args.api_key, **fields)

    def litellm(self, prompt="Hello!", **fields):
        fields.setdefault("messages", [{"role": "user", "content": prompt}])
        fields = {"temperature": 0, "max_tokens": 200, "max_retries": 0, **fields}
        return litellm.completion(model=f"openai/{self.model}", base_url=self.args.base_url,
                                  api_key=self.args.api_key, **fields)


@case
def langchain_chat(c):
    whole = c.langchain().invoke("Hello!")
    assert whole.content.strip() and whole.response_metadata["finish_reason"] == "stop", whole
    assert whole.usage_metadata["total_tokens"] > whole.usage_metadata["output_tokens"] > 0, whole
    chunks = list(c.langchain(stream_usage=True).stream("Hello!"))
    assert len(chunks) > 2 and "".join(chunk.text for chunk in chunks) == whole.content, chunks
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [u["output_tokens"] for u in usage] == [whole.usage_metadata["output_tokens"]], usage
    assert [answer.content for answer in c.langchain().batch(["Hello!"] * 3)] == [whole.content] * 3


@case
def langchain_tools(c):
    for fields in {}, {"use_responses_api": True}:
        model = c.langchain(**fields).bind_tools([get_weather])
        messages = [HumanMessage(TOOL_PROMPT)]
        answer = model.invoke(messages)
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", {"city": "Paris"})]
        streamed = None
        for chunk in model.stream(messages):
            streamed = chunk if streamed is None else streamed + chunk
        assert [call["args"] for call in streamed.tool_calls] == [{"city": "Paris"}], streamed
        result = get_weather.invoke(answer.tool_calls[0])
        assert isinstance(result, ToolMessage)
        assert model.invoke([*messages, answer, result]).text == TOLD
    forced = c.langchain().bind_tools([get_weather], tool_choice="get_weather").invoke(TOOL_PROMPT)
    assert forced.tool_calls[0]["name"] == "get_weather", forced


@case
def langchain_structured(c):
    for fields in {"method": "json_schema"}, {"method": "function_calling"}, {"method": "json_schema", "strict": True}:
        model = c.langchain(max_tokens=600, temperature=1)
        person = model.with_structured_output(Person, **fields).invoke("Describe a person.")
        assert isinstance(person, Person), (fields, person)


@case
def litellm_chat(c):
    whole = c.litellm()
    assert whole.choices[0].message.content.strip() and whole.choices[0].finish_reason == "stop", whole
    chunks = list(c.litellm(stream=True, stream_options={"include_usage": True}))
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content, rebuilt
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens > 0, rebuilt
    try:
        c.litellm(temperature=9)
        raise AssertionError("the temperature is too high")
    except litellm.BadRequestError as error:
        assert "temperature" in str(error), error


def tools_by_litellm(ask):
    answer = ask(TOOL_PROMPT, tools=TOOLS).choices[0]
    assert answer.finish_reason == "tool_calls", answer
    [call] = answer.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}, call
    messages = [{"role": "user", "content": TOOL_PROMPT}, answer.message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": get_weather.invoke({"city": "Paris"})}]
    assert ask(messages=messages, tools=TOOLS).choices[0].message.content == TOLD


@case
def litellm_tools(c):
    tools_by_litellm(c.litellm)
    chunks = list(c.litellm(TOOL_PROMPT, tools=TOOLS, stream=True))
    [call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}, call


@case
def litellm_structured(c):
    answer = c.litellm("Describe a person.", response_format=Person, temperature=1, max_tokens=600)
    Person.model_validate_json(answer.choices[0].message.content)


@case
def litellm_responses(c):
    answer = litellm.responses(model=f"openai/{c.model}", input="Hello!", api_base=c.args.base_url,
                               api_key=c.args.api_key, max_output_tokens=64, temperature=0)
    assert answer.status == "completed" and answer.output[-1].content[0].text.strip(), answer


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@case
def litellm_proxy(c):
    """The proxy as a process of its own before the server, and the OpenAI SDK before the proxy."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "config.yaml")
        params = {"model": f"openai/{c.model}", "api_base": c.args.base_url, "api_key": c.args.api_key}
        config.write_text(json.dumps({  # JSON is YAML
            "model_list": [{"model_name": "proxied", "litellm_params": params}],
            "general_settings": {"master_key": "sk-proxy"}}))
        port = free_port()
        command = [pathlib.Path(sys.executable).with_name("litellm"), "--config", config,
                   "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        with open(pathlib.Path(folder, "log"), "w+") as log:
            proxy = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
            try:
                wait_for(f"http://127.0.0.1:{port}/health/liveliness", proxy)
                through_proxy(openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-proxy", max_retries=0))
            except Exception:
                log.seek(0)
                print(log.read()[-3000:])
                raise
            finally:
                proxy.terminate()
                proxy.wait(30)


def wait_for(url, process):
    for _ in range(600):
        assert process.poll() is None, "the process has ended"
        try:
            return urllib.request.urlopen(url, timeout=5).read()
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


def through_proxy(client):
    assert [model.id for model in client.models.list()] == ["proxied"]

    def ask(prompt="Hello!", **fields):
        fields.setdefault("messages", [{"role": "user", "content": prompt}])
        return client.chat.completions.create(model="proxied", temperature=0, max_tokens=200, **fields)

    whole = ask().choices[0].message.content
    chunks = [chunk for chunk in ask(stream=True) if chunk.choices]
    assert len(chunks) > 2 and "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole, chunks
    tools_by_litellm(ask)
    answer = client.responses.create(model="proxied", input="Hello!", temperature=0, max_output_tokens=64)
    assert answer.output_text == whole, answer
    answer = client.chat.completions.parse(
        model="proxied", messages=[{"role": "user", "content": "Describe a person."}], response_format=Person,
        max_tokens=600)
    assert isinstance(answer.choices[0].message.parsed, Person), answer


@case
def llm_command(c):
    """The `llm` command with a model of its extra-openai-models.yaml."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "extra-openai-models.yaml").write_text(json.dumps([{
            "model_id": "tiny", "model_name": c.model, "api_base": c.args.base_url, "api_key_name": "taper",
            "supports_schema": True, "supports_tools": True}]))
        pathlib.Path(folder, "keys.json").write_text(json.dumps({"taper": c.args.api_key}))
        functions = pathlib.Path(folder, "functions.py")
        functions.write_text('def get_weather(city: str) -> str:\n    """Get a weather."""\n'
                             '    return \'{"result": "48213"}\'\n')

        def llm(*words):
            done = subprocess.run(
                [pathlib.Path(sys.executable).with_name("llm"), "-m", "tiny", "-o", "max_tokens", "600", *words],
                env={**os.environ, "LLM_USER_PATH": folder}, capture_output=True, text=True, timeout=120,
                stdin=subprocess.DEVNULL)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        whole = llm("-o", "temperature", "0", "--no-stream", "Hello!")
        assert whole and llm("-o", "temperature", "0", "Hello!") == whole
        Person.model_validate_json(llm("--schema", json.dumps(Person.model_json_schema()), "Describe a person."))
        told = llm("-o", "temperature", "0", "--functions", functions, TOOL_PROMPT)
        assert told.endswith(TOLD), told


def main():
    litellm.suppress_debug_info = True
    run(by_name(CASES), Clients(parser(__doc__).parse_args()))


if __name__ == "__main__":
    main()
