"""Jinja for strangers' templates: no way to Python's insides, and an end in bounded time and space.

Jinja's own immutable sandbox keeps a template away from attributes that lead anywhere (`__class__`, `gi_frame`, …),
from changing what it is given, and from ranges beyond 100 000. What it does not bound is work. Three rules do:
every value is measured when it was made; the few operations that make a long value out of a short one in a single step
(`x * n`, a field width, `center(n)`, `replace`, `join`) are measured before they run; and a trace function counts the
processor time of the rendering. Texts and numbers of the conversation trip none of them, whatever they say.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import wraps
from types import FrameType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_TEXT = 4_000_000
"""Characters of any text a template makes, its output included; entries of any list."""
MOST_SECONDS = 2.0
"""Processor time one rendering may take."""
_MOST_SIZE = 100_000
"""Largest number that may be given to one of `_SIZED`."""
_MOST_BITS = 4096
_SIZED = frozenset(
    [
        "center",
        "ljust",
        "rjust",
        "zfill",
        "expandtabs",
        "indent",
        "batch",
        "slice",
        "truncate",
        "wordwrap",
        "tojson",
        "round",
    ]
)
"""Functions and filters to which a number says how long their result is."""
_FORMATS = frozenset(("format", "format_map", "strftime_now", "strftime"))
"""Those whose first text is a format string. A width may stand in it, or be one of the values (`%*d`, `{:{}}`)."""
_WIDTH = re.compile(r"\d{6,}")
_OUTER_WIDTH = re.compile(r"%[-+ #0]*\*|%[-+ #0\d]*\.\*|\{[^{}]*\{")
"""A width that is taken from the values."""
_STEPS = 256
"""Lines of a template's code between two looks at the clock."""


class Exceeded(SecurityError):
    """A template wants more time or space than any conversation needs."""


class Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: marks for training what an assistant says. Here only what is in it."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, with a scope of its own as in the reference implementation."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _measured(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple | dict | set):
        _measured_size(len(value))
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise Exceeded(f"it makes a number of {value.bit_length()} bits")
    return value


def _measured_size(size: int) -> None:
    if size > MOST_TEXT:
        raise Exceeded(f"it makes a value of {size} characters or entries")


def _check(name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse a call whose result could be too long, before it is made. The first argument is what it works on."""
    values = [*arguments, *named.values()]
    if name in _SIZED:
        _check_sizes(name, values[1:])
    elif name in _FORMATS and arguments and isinstance(arguments[0], str):
        if _WIDTH.search(arguments[0]):
            raise Exceeded(f"it calls {name} with a width of six digits")
        if _OUTER_WIDTH.search(arguments[0]):
            _check_sizes(name, values)
    elif name in ("replace", "join"):
        texts = [value for value in values if isinstance(value, str)]
        if name == "replace" and len(texts) >= 3:
            _measured_size(len(texts[0]) + (texts[0].count(texts[1]) + 1) * len(texts[2]))
        glue = max((len(text) for text in texts), default=0)
        if name == "join":
            _measured_size(sum(glue * len(value) for value in values if isinstance(value, list | tuple | str)))


def _check_sizes(name: str, values: list[Any]) -> None:
    for value in values:
        for size in value if isinstance(value, tuple) else (value,):
            if isinstance(size, int) and abs(size) > _MOST_SIZE:
                raise Exceeded(f"it calls {name} with {size if size.bit_length() < 64 else 'a huge number'}")


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    taken = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0  # Jinja passes its context first

    @wraps(function)  # copies the marks by which Jinja knows what to pass
    def guarded(*arguments: Any, **named: Any) -> Any:
        _check(name, arguments[taken:], named)
        return _measured(function(*arguments, **named))

    return guarded


class _Generator(CodeGenerator):
    """Compiles `a ~ b` into a measured join."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment chat templates run in. Rendering is `render_bounded`; anything else has no time limit."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
        del self.globals["lipsum"]
        self.filters = {name: _guarded(name, function) for name, function in self.filters.items()}

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Offer a filter to templates, measured like all others."""
        self.filters[name] = _guarded(name, function)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic step, refused where its result would be too large."""
        if operator == "*":
            size, count = (left, right) if isinstance(right, int) else (right, left)
            if hasattr(size, "__len__") and isinstance(count, int):
                _measured_size(len(size) * max(0, count))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _measured_size(abs(left).bit_length() * abs(right) // _MOST_BITS * MOST_TEXT)
        elif operator == "%" and isinstance(left, str):
            _check("format", (left, right), {})
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _measured_size(len(left) + len(right))
        return _measured(super().call_binop(context, operator, left, right))

    def concatenate(self, parts: tuple[Any, ...]) -> str:
        """`a ~ b`, measured."""
        texts = [str(_measured(part)) for part in parts]
        _measured_size(sum(map(len, texts)))
        return "".join(texts)

    def call(self, context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """A call from within a template, measured before and after."""
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # Jinja wraps str.format
        _check(getattr(function, "__name__", ""), (*([owner] if owner is not None else ()), *arguments), named)
        return _measured(super().call(context, function, *arguments, **named))


def render_bounded(template: Any, names: Mapping[str, Any]) -> str:
    """What `template` makes of `names`.

    Args:
        template: Made by a `Sandbox`.
        names: What the template may use.

    Raises:
        Exceeded: It takes more time or makes more text than any conversation needs.
    """
    pieces: list[str] = []
    size = 0
    before = sys.gettrace()
    sys.settrace(_Deadline(MOST_SECONDS))
    try:
        for piece in template.generate(**names):
            size += len(piece)
            _measured_size(size)
            pieces.append(piece)
    finally:
        sys.settrace(before)
    return "".join(pieces)


class _Deadline:
    """A trace function that ends a rendering. Processor time: neither a stopped clock nor a busy machine counts."""

    def __init__(self, seconds: float) -> None:
        self._end = time.thread_time() + seconds
        self._seconds = seconds
        self._steps = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> _Deadline:
        self._steps += 1
        if self._steps % _STEPS == 0 and time.thread_time() > self._end:
            raise Exceeded(f"it takes more than {self._seconds:g} s")
        return self
