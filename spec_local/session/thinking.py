"""Switching a model's thinking on and off: by the variables its template knows, else by how the prompt ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_local.session.families import Thinking
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.template import ChatTemplate

_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates are told."""
_FINAL = "<|channel|>final<|message|>"


def variables(template: ChatTemplate, options: ReplyOptions) -> dict[str, Any]:
    """What the template is told: the person's own variables, and its switch where thinking is on or off."""
    switched: Mapping[str, Any] = {}
    if options.thinking != "auto":
        switched = {name: options.thinking == "on" for name in _SWITCHES if template.asks_for(name)}
    return {**switched, **options.template_args}


def ending(covered: str, template: ChatTemplate, thinking: Thinking | None, options: ReplyOptions) -> tuple[str, bool]:
    """What a prompt still needs for thinking to be as asked for, and whether the reply then begins inside the block.

    Args:
        covered: The prompt as the template left it.
        template: Its template.
        thinking: The model's family; None where it does not think.
        options: What was asked for.

    Returns:
        Text to add, and True where the block of thinking is open (of channels: where the answer is).
    """
    if thinking is None:
        return "", False
    if thinking.channels:
        off = options.thinking == "off" and covered.endswith("<|start|>assistant")
        return (_FINAL if off else ""), off or covered.endswith(_FINAL)
    begun = thinking.open + thinking.label
    space = covered[len(covered.rstrip()) :]
    told = any(template.asks_for(name) for name in _SWITCHES)
    if covered.rstrip().endswith(begun.rstrip()):
        if options.thinking != "off":
            return "", True
        lead = (thinking.label[len(thinking.label.rstrip()) :] + thinking.gap).removeprefix(space)
        return f"{lead}{thinking.close}{thinking.gap}", False
    closed = covered.rstrip().endswith(thinking.close)
    if options.thinking == "off" and not closed and not told:
        return thinking.empty, False
    if options.thinking == "on" and not closed and not told:
        return begun, True
    return "", False
