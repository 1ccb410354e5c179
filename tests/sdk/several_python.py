"""Ollama's Python client against a server of several models, which tests/several.py starts."""
import ollama

from cases import CASES, Context, by_name, case, parser, run

GREEDY = {"temperature": 0, "num_predict": 8}


class Several(Context):
    def __init__(self, args):
        super().__init__(args)
        host = args.base_url.removesuffix("/v1")
        self.client = ollama.Client(host=host, headers={"Authorization": f"Bearer {args.api_key}"}, timeout=120)

    def names(self):
        return [model.model for model in self.client.list().models]

    def loaded(self):
        return [model.model for model in self.client.ps().models]

    def say(self, model, **fields):
        return self.client.generate(model, "What is 12 + 30?", options=GREEDY, think=False, **fields)


def refused(status, call):
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status, (error.status_code, error.error)
    else:
        raise AssertionError(f"{status} was expected")


@case
def lists_and_shows_without_loading(c):
    assert c.names()[:3] == ["m0", "m1", "m2"]
    shown = c.client.show("m1")
    assert {"completion", "tools"} <= set(shown.capabilities), shown
    assert shown.modelinfo["general.parameter_count"] > 1000 and shown.template
    assert c.loaded() == []


@case
def loads_what_is_asked_and_keeps_two(c):
    for model in ["m0", "m1", "m2", "m0:latest", "m1"]:
        assert c.say(model).response
        loaded = c.loaded()
        assert model.removesuffix(":latest") in loaded and len(loaded) <= 2, loaded
    assert c.loaded() == ["m0", "m1"]
    sizes = {model.model: model.size for model in c.client.ps().models}
    assert sizes["m0"] > 15_000_000, sizes


@case
def keeps_a_model_for_as_long_as_asked(c):
    c.say("m0", keep_alive="1h")
    c.client.generate("m0", keep_alive=0)
    for _ in range(200):
        if "m0" not in c.loaded():
            break
    else:
        raise AssertionError("it stays")
    refused(400, lambda: c.client.generate("m0", keep_alive="soon"))


@case
def downloads_with_progress(c):
    steps = list(c.client.pull("org/name", stream=True))
    assert steps[0].status == "pulling manifest" and steps[-1].status == "success", steps
    weights = [step for step in steps if step.digest == "model.safetensors"]
    counts = [step.completed for step in weights]
    assert len(counts) > 3 and counts == sorted(counts) and counts[-1] == weights[0].total, counts
    assert "org/name" in c.names()
    assert c.say("org/name").response == c.say("m0").response
    assert c.client.pull("hf.co/org/name").status == "success"
    refused(400, lambda: c.client.pull("org/none"))


@case
def deletes_what_is_not_loaded(c):
    c.say("org/name")
    refused(409, lambda: c.client.delete("org/name"))
    c.client.generate("org/name", keep_alive=0)
    while "org/name" in c.loaded():
        pass
    assert c.client.delete("org/name").status == "success"
    assert "org/name" not in c.names()
    refused(404, lambda: c.client.delete("org/name"))


if __name__ == "__main__":
    run(by_name(CASES), Several(parser(__doc__).parse_args()))
