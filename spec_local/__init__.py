"""spec-local: exact speculative decoding on one's own machine.

`import spec_local` is cheap: llama.cpp, numpy and Textual load only when something needs them.

    import spec_local

    with spec_local.load() as engine:                        # the default pair
        for piece in engine.stream("Write a haiku about rivers"):
            print(piece.text, end="", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.engine import Engine, load

__version__ = "0.1.0"
__all__ = ["Engine", "Sampling", "__version__", "load"]

_LAZY = {
    "Engine": "spec_local.session.engine",
    "load": "spec_local.session.engine",
    "Sampling": "spec_local.sampling.params",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
