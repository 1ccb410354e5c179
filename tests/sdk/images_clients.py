"""Images by LangChain against a running server of a model that sees."""
import base64
import pathlib

import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

from cases import CASES, Context, by_name, case, parser, run

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
SEEN, OTHER, DAMAGED = (base64.b64encode((FIXTURES / name).read_bytes()).decode()
                        for name in ("vision/qwen3_vl-chat/image.png", "images/rgb.png", "images/truncated.png"))


class LangChain(Context):
    def ask(self, part, **fields):
        fields = {"temperature": 0, "max_tokens": 16, "max_retries": 0, **fields}
        model = ChatOpenAI(model=self.model, base_url=self.args.base_url, api_key=self.args.api_key, **fields)
        return model.invoke([HumanMessage([part, {"type": "text", "text": "What is this?"}])])


def by_url(image):
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}


def by_base64(image):
    return {"type": "image", "base64": image, "mime_type": "image/png"}


@case
def parts_of_both_kinds(c):
    answer = c.ask(by_url(SEEN))
    assert answer.text and answer.usage_metadata["input_tokens"] > 20, answer
    assert c.ask(by_base64(SEEN)).text == answer.text != c.ask(by_base64(OTHER)).text


@case
def responses(c):
    answer = c.ask(by_url(SEEN))
    for part in by_url, by_base64:
        assert c.ask(part(SEEN), use_responses_api=True).text == answer.text


@case
def errors(c):
    try:
        c.ask(by_url(DAMAGED))
    except openai.BadRequestError as error:
        assert error.code == "invalid_image", error
    else:
        raise AssertionError("it should have been refused")


def main():
    run(by_name(CASES), LangChain(parser(__doc__).parse_args()))


if __name__ == "__main__":
    main()
