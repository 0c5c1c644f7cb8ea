"""llama.cpp with faults at will: the real library behind a context, in which single calls fail, lie or are stopped.

    faults = NativeFaults(context)
    faults.decode_at(3, status=-3)

What is counted are calls of `llama_decode` through this context, from 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from spec_local.language_model import Chunk
from spec_local.llama.model_context import ModelContext
from spec_local.llama.native import NativeContext
from spec_local.llama.padded import LocalContext, open_context

ABORTED, NO_ROOM, OUT_OF_MEMORY, FAILED, INVALID = 2, 1, -2, -3, -1


def native(context: ModelContext) -> NativeContext:
    """llama.cpp's own context behind one of this process."""
    assert isinstance(context, LocalContext)
    return context.native


class NativeFaults:
    """Stands in for the library of one context."""

    def __init__(self, context: ModelContext) -> None:
        self.context = context
        self.native = native(context)
        self.lib = self.native.lib
        self.decodes = 0
        self.statuses: dict[int, int] = {}
        self.rows: dict[int, float] = {}
        self.before: dict[int, Callable[[], None]] = {}
        self.after: dict[int, Callable[[], None]] = {}
        self.refuse_cuts = False
        self.native.lib = cast(Any, self)

    def decode_at(self, call: int, status: int) -> None:
        """The pass is computed, whole, and then said to have failed: the caches are as wrong as they can be."""
        self.statuses[call] = status

    def logits_at(self, call: int, value: float) -> None:
        """Every logit of that pass is `value`."""
        self.rows[call] = value

    def undo(self) -> None:
        self.native.lib = self.lib

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, name)

    def llama_decode(self, handle: Any, batch: Any) -> int:
        call, self.decodes = self.decodes, self.decodes + 1
        if call in self.before:
            self.before[call]()
        status = int(self.lib.llama_decode(handle, batch))
        if call in self.after:
            self.after[call]()
        wanted = int(np.ctypeslib.as_array(batch.logits, shape=(batch.n_tokens,)).sum()) if batch.n_tokens else 0
        if status == 0 and call in self.rows and wanted:
            rows = np.ctypeslib.as_array(
                ctypes.cast(self.lib.llama_get_logits(handle), ctypes.POINTER(ctypes.c_float)),
                shape=(wanted, self.context.n_vocab),
            )
            rows[...] = self.rows[call]
        return status or self.statuses.get(call, 0)

    def llama_memory_seq_rm(self, memory: Any, seq: int, start: int, end: int) -> bool:
        if self.refuse_cuts and start > 0:
            return False
        return bool(self.lib.llama_memory_seq_rm(memory, seq, start, end))


def check_caches(engine: Any, tokens: list[int], tolerance: float = 0.05) -> None:
    """Oracle O3 after an answer whose prompt and text are `tokens`: what each cache holds, it holds rightly.

    The target's and the draft's next row from the live cache must be those of an empty cache fed the same ids.
    """
    speculator = engine.speculator
    for context, cache in (
        (engine.loaded.target, speculator._cache),
        (engine.loaded.draft, getattr(speculator.drafters.get("model"), "_cache", None)),
    ):
        if context is None or cache is None:
            continue
        held = min(context.length(0), len(cache.tokens(0)))
        known = list(cache.tokens(0))[:held]
        assert known == tokens[: len(known)] or context is engine.loaded.draft
        if context.length(0) != held or not held:
            continue  # an interrupt or a failure came between: what is there counts as unknown and is cut first
        fresh = open_context(context.model, context.options)
        try:
            fresh.decode([Chunk(0, known, 0)]) if len(known) <= fresh.n_batch else _feed(fresh, known)
            if held >= context.n_ctx:
                continue
            state = context.checkpoint(0)
            live = context.decode([Chunk(0, [0], 1)])[0][0].copy()
            right = fresh.decode([Chunk(0, [0], 1)])[0][0]
            assert float(np.abs(live - right).max()) < tolerance, context.model.path.name
            context.trim(0, 0)
            context.restore(0, state)
        finally:
            fresh.close()


def _feed(context: ModelContext, tokens: list[int]) -> None:
    for start in range(0, len(tokens), context.n_batch):
        context.decode([Chunk(0, tokens[start : start + context.n_batch], 0)])
