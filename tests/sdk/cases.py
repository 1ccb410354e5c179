"""Cases against a running server, one after the other: what the scripts of SDKs share."""
import argparse
import json
import sys
import traceback
import urllib.request

CASES = []


def case(f):
    CASES.append(f)
    return f


def parser(description):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--base-url", default="http://localhost:8000/v1")
    p.add_argument("--api-key", default="none")
    p.add_argument("--model", help="the first one served, if not given")
    return p


class Context:
    """What the arguments say, and the model that is asked."""

    def __init__(self, args):
        self.args = args
        asked = urllib.request.Request(args.base_url + "/models", headers={"Authorization": f"Bearer {args.api_key}"})
        self.model = args.model or json.load(urllib.request.urlopen(asked))["data"][0]["id"]


def run(cases, context):
    """Runs pairs of a name and a function of the context, and ends the program."""
    cases, failed = list(cases), 0
    for name, f in cases:
        try:
            f(context)
            print(f"ok      {name}")
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def by_name(functions):
    return [(f.__name__, f) for f in functions]
