"""Cases against a running server, one after the other: what the scripts of SDKs share."""
import argparse
import sys
import traceback

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
