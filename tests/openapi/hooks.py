"""Keeps outputs short: a limit that fits the context is sound, and takes minutes to reach.

Schemathesis reads this file through the environment variable SCHEMATHESIS_HOOKS.
"""

import schemathesis

SHORT, CONTEXT = 64, 262_144
# Limits of each route, the largest that is not refused, and whether one is set where none was asked
# for. Anthropic's route takes any number, as far as the context goes.
LIMITS = {
    "/v1/chat/completions": (("max_tokens", "max_completion_tokens"), CONTEXT, True),
    "/v1/completions": (("max_tokens",), CONTEXT, False),
    "/v1/messages": (("max_tokens",), 2**32 - 1, False),
    "/v1/responses": (("max_output_tokens",), CONTEXT, True),
}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@schemathesis.hook
def before_call(context, case, kwargs):
    names, most, fills = LIMITS.get(case.operation.path, ((), 0, False))
    body = case.body
    if not isinstance(body, dict) or not names:
        return
    limits = {name: body[name] for name in names if body.get(name) is not None}
    short = {
        name: SHORT
        for name, value in limits.items()
        if is_number(value) and SHORT < value <= most and value == int(value)
    }
    if not limits and fills:
        short = {names[0]: SHORT}
    if short:
        case.body = body | short
