"""instructor and pydantic-ai against a running server: do they get the objects that they ask for?"""
import argparse
import sys
import traceback
from typing import Literal

import instructor
import openai
import pydantic
import pydantic_ai
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=30)
    age: int = pydantic.Field(ge=0, le=150)
    active: bool
    kind: Literal["small", "large"]


def instructor_mode(args, mode):
    client = openai.OpenAI(base_url=args.base_url, api_key=args.api_key, max_retries=0, timeout=120)
    person = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=args.model, response_model=Person, max_tokens=600, max_retries=0,
        messages=[{"role": "user", "content": "Describe a person."}])
    assert isinstance(person, Person), person


def pydantic_ai_output(args, output):
    model = OpenAIChatModel(args.model, provider=OpenAIProvider(base_url=args.base_url, api_key=args.api_key))
    settings = {"max_tokens": 600, "temperature": 1}
    result = pydantic_ai.Agent(model, output_type=output, model_settings=settings).run_sync("Describe a person.")
    assert isinstance(result.output, Person), result


CASES = [
    ("instructor, tools", instructor_mode, instructor.Mode.TOOLS),
    ("instructor, strict tools", instructor_mode, instructor.Mode.TOOLS_STRICT),
    ("instructor, JSON schema", instructor_mode, instructor.Mode.JSON_SCHEMA),
    ("pydantic-ai, tool output", pydantic_ai_output, Person),
    ("pydantic-ai, native output", pydantic_ai_output, pydantic_ai.NativeOutput(Person)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://localhost:8000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--model", help="the first one served, if not given")
    args = parser.parse_args()
    if not args.model:
        args.model = openai.OpenAI(base_url=args.base_url, api_key=args.api_key).models.list().data[0].id
    failed = 0
    for name, case, what in CASES:
        try:
            case(args, what)
            print(f"ok      {name}")
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}")
    print(f"{len(CASES) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
