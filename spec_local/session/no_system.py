"""A system message that was asked to be empty: none at all, as far as the chat template allows that.

Some templates put in a text of their own where a conversation has no system message ("You are a helpful assistant").
Whoever says `--system ""` does not want it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spec_local.session.messages import Message

_PROBE = "system message, to be found again"


def without_system(render: Callable[[list[Message]], str], asked: Sequence[Message]) -> tuple[list[Message], str]:
    """What to render so that the model sees no system message.

    Args:
        render: The template.
        asked: The conversation.

    Returns:
        The conversation, with an empty system message where only that keeps the template's own text out; and what a
        person should know, empty where there is no system message at all.
    """
    if not asked or asked[0]["role"] == "system":
        return list(asked), ""
    bare, empty = list(asked), [Message(role="system", content=""), *asked]
    none, probed = render(bare), render([Message(role="system", content=_PROBE), *asked])
    ahead = _shared(none, probed)
    behind = _shared(none[ahead:][::-1], probed[ahead:][::-1])
    if ahead + behind == len(none):  # the probe's turn was added to a prompt that had none
        return bare, ""
    blank = render(empty)
    if blank != none and blank == probed.replace(_PROBE, ""):
        return empty, "This model's template has a system message of its own; an empty one takes its place."
    return bare, "This model's template always has a system message of its own; it cannot be left out."


def _shared(one: str, other: str) -> int:
    """Characters that two texts begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
