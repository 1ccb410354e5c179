"""Renders every template on every case with Hugging Face transformers; writes golden.json.

Run it where transformers and jinja2 are installed: python render.py
"""

import datetime
import json
import pathlib

import jinja2
import transformers.utils.chat_template_utils as chat

HERE = pathlib.Path(__file__).parent


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(1709210096, datetime.timezone.utc)


chat.datetime = FixedTime


def main():
    data = json.loads((HERE / "conversations.json").read_text())
    golden = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        golden[path.stem] = results = []
        for case in data["cases"]:
            try:
                rendered, _ = chat.render_jinja_template(
                    [data["conversations"][case["conversation"]]],
                    tools=data["tools"] if case.get("tools") else None,
                    chat_template=path.read_text(),
                    add_generation_prompt=case.get("add_generation_prompt", True),
                    continue_final_message=case.get("continue_final_message", False),
                    bos_token="<s>",
                    eos_token="</s>",
                    values=data["values"],
                    **case.get("kwargs", {}),
                )
                results.append({"prompt": rendered[0]})
            except jinja2.exceptions.TemplateError as error:
                results.append({"raised": str(error)})
    text = json.dumps(golden, ensure_ascii=False, indent=1)
    (HERE / "golden.json").write_text(text + "\n")


main()
