"""Engines over the tiny models, as the tests of the façade open them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spec_local.sampling import Sampling
from spec_local.session.engine import Engine
from spec_local.session.generation import Generation, Request

PROMPT = "the abcd on an inn, the abcd on an inn, the "
"""Repeats itself, so that text drafts find something."""
Load = Callable[..., Engine]
"""Of the fixture `open_engine`."""


def drawn(**fields: Any) -> Sampling:
    """Sampling at T = 0.8 from the whole distribution, unless told otherwise."""
    whole = {"temperature": 0.8, "seed": 3, "max_tokens": 40, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return Sampling(**{**whole, **fields})


def together(engine: Engine, *requests: Request) -> list[Generation]:
    """The requests, handed in at once and answered by steps of the engine's loop."""
    handed_in = engine.loop.call(lambda: [engine.submit(request, lambda _event: None) for request in requests])
    while engine.loop.step():
        pass
    return [ticket.generation for ticket in handed_in.result()]
