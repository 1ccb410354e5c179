"""instructor and pydantic-ai against a running server: do they get the objects that they ask for?"""
from functools import partial
from typing import Literal

import instructor
import openai
import pydantic
import pydantic_ai
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from cases import parser, run


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=30)
    age: int = pydantic.Field(ge=0, le=150)
    active: bool
    kind: Literal["small", "large"]


def instructor_mode(args, what):
    client = openai.OpenAI(base_url=args.base_url, api_key=args.api_key, max_retries=0, timeout=120)
    person = instructor.from_openai(client, mode=what).chat.completions.create(
        model=args.model, response_model=Person, max_tokens=600, max_retries=0,
        messages=[{"role": "user", "content": "Describe a person."}])
    assert isinstance(person, Person), person


def pydantic_ai_output(args, what):
    model = OpenAIChatModel(args.model, provider=OpenAIProvider(base_url=args.base_url, api_key=args.api_key))
    settings = {"max_tokens": 600, "temperature": 1}
    result = pydantic_ai.Agent(model, output_type=what, model_settings=settings).run_sync("Describe a person.")
    assert isinstance(result.output, Person), result


CASES = [
    ("instructor, tools", partial(instructor_mode, what=instructor.Mode.TOOLS)),
    ("instructor, strict tools", partial(instructor_mode, what=instructor.Mode.TOOLS_STRICT)),
    ("instructor, JSON schema", partial(instructor_mode, what=instructor.Mode.JSON_SCHEMA)),
    ("pydantic-ai, tool output", partial(pydantic_ai_output, what=Person)),
    ("pydantic-ai, native output", partial(pydantic_ai_output, what=pydantic_ai.NativeOutput(Person))),
]


def main():
    args = parser(__doc__).parse_args()
    if not args.model:
        args.model = openai.OpenAI(base_url=args.base_url, api_key=args.api_key).models.list().data[0].id
    run(CASES, args)


if __name__ == "__main__":
    main()
