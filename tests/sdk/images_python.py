"""Images by the Python SDKs of OpenAI and Anthropic against a running server of a model that sees."""
import base64
import pathlib

import anthropic
import openai

from cases import CASES, by_name, case, parser, run

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
QUESTION = "What is this?"
TOKENS = 16


def encoded(name):
    return base64.b64encode((FIXTURES / name).read_bytes()).decode()


SEEN, OTHER, DAMAGED = map(encoded, ["vision/qwen3_vl-chat/image.png", "images/rgb.png", "images/truncated.png"])


def url(image):
    return f"data:image/png;base64,{image}"


class Context:
    def __init__(self, args):
        fields = {"api_key": args.api_key, "max_retries": 0, "timeout": 120}
        self.openai = openai.OpenAI(base_url=args.base_url, **fields)
        self.anthropic = anthropic.Anthropic(base_url=args.base_url.removesuffix("/v1"), **fields)
        self.model = args.model or self.openai.models.list().data[0].id

    def chat(self, *images, detail="auto", **fields):
        parts = [{"type": "image_url", "image_url": {"url": url(image), "detail": detail}} for image in images]
        return self.openai.chat.completions.create(
            model=self.model, temperature=0, max_tokens=TOKENS,
            messages=[{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}], **fields)

    def respond(self, image, **fields):
        content = [{"type": "input_image", "image_url": url(image), "detail": "auto"},
                   {"type": "input_text", "text": QUESTION}]
        return self.openai.responses.create(model=self.model, temperature=0, max_output_tokens=TOKENS,
                                            input=[{"role": "user", "content": content}], **fields)

    def message(self, image, **fields):
        source = {"type": "base64", "media_type": "image/png", "data": image}
        content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
        return {"model": self.model, "messages": [{"role": "user", "content": content}], **fields}


def said(answer):
    return answer.choices[0].message.content


def refused(call, *errors):
    try:
        call()
    except errors as error:
        assert error.status_code == 400, error
        return error
    raise AssertionError("it should have been refused")


@case
def chat(c):
    answer = c.chat(SEEN)
    assert said(answer), answer
    assert answer.usage.prompt_tokens_details.image_tokens > 0, answer.usage
    assert answer.usage.prompt_tokens > answer.usage.prompt_tokens_details.image_tokens, answer.usage
    assert said(c.chat(SEEN, detail="high")) == said(answer)
    assert said(c.chat(OTHER)) != said(answer) != said(c.chat())
    chunks = list(c.chat(SEEN, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said(answer)
    assert chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens


@case
def images_in_order(c):
    assert said(c.chat(SEEN, OTHER)) != said(c.chat(OTHER, SEEN))
    one, two = (c.chat(*images).usage.prompt_tokens_details.image_tokens for images in ([SEEN], [SEEN, SEEN]))
    assert two == 2 * one


@case
def responses(c):
    answer, whole = c.respond(SEEN), c.chat(SEEN)
    assert answer.output_text == said(whole), answer
    assert answer.usage.input_tokens == whole.usage.prompt_tokens, answer.usage
    asked = {"model": c.model, "temperature": 0, "max_output_tokens": TOKENS}
    again = c.openai.responses.create(previous_response_id=answer.id, input="And what else?", **asked)
    assert again.usage.input_tokens > answer.usage.input_tokens, "the image is still there"


@case
def messages(c):
    fields = {"max_tokens": TOKENS, "extra_body": {"temperature": 0}}
    answer = c.anthropic.messages.create(**c.message(SEEN, **fields))
    text = "".join(block.text for block in answer.content if block.type == "text")
    assert said(c.chat(SEEN)).startswith(text.rstrip()), answer
    counted = c.anthropic.messages.count_tokens(**c.message(SEEN))
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0), answer


@case
def errors(c):
    error = refused(lambda: c.chat(DAMAGED), openai.BadRequestError)
    assert error.code == "invalid_image", error
    error = refused(lambda: c.respond(DAMAGED), openai.BadRequestError)
    assert error.code == "invalid_image", error
    refused(lambda: c.chat(SEEN, detail="low"), openai.BadRequestError)
    fields = {"max_tokens": TOKENS}
    error = refused(lambda: c.anthropic.messages.create(**c.message(DAMAGED, **fields)), anthropic.BadRequestError)
    assert "image" in error.body["error"]["message"], error


def main():
    run(by_name(CASES), Context(parser(__doc__).parse_args()))


if __name__ == "__main__":
    main()
