"""How far speculation's numbers are from plain decoding's on this machine: bit-identical, or within ε.

A pass over one row and a pass over many go through different kernels, so the same tokens may get logits that differ in
their last bits, and a near-tie can fall the other way. What is promised is exactness *given the logits that were
computed*; this probe says how much that is here. It is made once per machine, build and pair of files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spec_local.language_model import Chunk
from spec_local.llama.model_context import ModelContext
from spec_local.session.loading import Loaded, LoadProgress, keep_on
from spec_local.session.options import EngineOptions
from spec_local.session.saved import identity, read_saved, saved_path, write_saved

_TEXT = "def is_prime(n):\n    if n < 2:\n        return False  # the sea was calm"
"""Short, since the first start waits for it; `spec-local verify` measures ε on whole answers."""
_TOKENS = 8
"""Tokens of it that are evaluated, and the widest pass that is compared."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """What the start-up probe found."""

    tier: Literal["bitwise", "tolerance"]
    """bitwise: passes of every width in use gave the same bits; tolerance: they differed by up to `epsilon`."""
    epsilon: float
    """Largest difference of one logit between one-by-one and wider passes; 0.0 where bitwise."""
    flips: int
    """Positions whose likeliest token differed."""
    positions: int
    """Positions compared, over all widths."""
    widths: tuple[int, ...]
    """Rows of the passes compared with one-row passes; empty where only one-row passes are in use."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "widths": list(self.widths)}

    def sentence(self) -> str:
        """For a person."""
        if self.tier == "bitwise":
            if not self.widths:
                return "bitwise: every pass has the same width"
            return f"bitwise: passes of {_list(self.widths)} rows gave the same bits as one-row passes"
        flips = f"{self.flips} of {self.positions}" if self.flips else f"none of {self.positions}"
        return (
            f"tolerance {self.epsilon:.2g}: logits differ by up to that between one-row passes and passes of "
            f"{_list(self.widths)} rows; {flips} arg-max decisions changed"
        )


def numerics(loaded: Loaded, longest_draft: int, progress: LoadProgress | None = None) -> Numerics:
    """The saved finding for these models on this machine, or a fresh probe, which is saved.

    Args:
        loaded: The models.
        longest_draft: Most tokens in one draft; 0 where there is no drafter.
        progress: Told how far a probe is.

    Raises:
        Aborted: `progress` said so.
    """
    widths = widths_in_use(longest_draft, loaded.options)
    if not widths:
        return Numerics("bitwise", 0.0, 0, 0, ())
    key = {**identity(loaded), "widths": " ".join(map(str, widths))}
    path = saved_path("numerics", key)
    saved = read_saved(path, key)
    if saved is not None:
        try:
            return Numerics(**{**saved["numerics"], "widths": tuple(saved["numerics"]["widths"])})
        except (KeyError, TypeError):
            pass
    found = probe(loaded.target, widths, keep_on(progress, "comparing passes of one row and of many"))
    write_saved(path, {"identity": key, "numerics": found.as_dict()})
    return found


def widths_in_use(longest_draft: int, options: EngineOptions) -> tuple[int, ...]:
    """Widths of target passes, other than one row, worth comparing under these options; none where all are padded."""
    if options.pad_width:
        return ()
    widest = min(longest_draft + 1, _TOKENS)
    return tuple(sorted({min(n, widest) for n in (2, 4, widest)} - {1})) if widest > 1 else ()


def probe(context: ModelContext, widths: Sequence[int], go_on: Callable[[float], None] = lambda _: None) -> Numerics:
    """Evaluate a short text one token at a time and in passes of each width. Leaves slot 0 empty.

    About `8·V(1) + Σ_w ⌈8/w⌉·V(w)` seconds, V(n) being a pass of n rows.

    Args:
        context: The target.
        widths: Rows of the passes to compare with one-row passes.
        go_on: Told the share done before each pass; may raise.
    """
    epsilon, flips, done = 0.0, 0, 0
    tokens = context.model.vocabulary.tokenize(_TEXT)[: min(_TOKENS, context.n_ctx - 1)]
    passes = sum(-(-len(tokens) // width) for width in (1, *widths))

    def before_pass() -> None:
        nonlocal done
        go_on(done / passes)
        done += 1

    single = evaluate(context, tokens, 1, before_pass)
    for width in widths:
        wide = evaluate(context, tokens, width, before_pass)
        epsilon = max(epsilon, float(np.abs(wide - single).max()))
        flips += int((wide.argmax(axis=1) != single.argmax(axis=1)).sum())
    positions = len(tokens) * len(widths)
    return Numerics("bitwise" if epsilon == 0.0 else "tolerance", epsilon, flips, positions, tuple(widths))


def evaluate(
    context: ModelContext, tokens: Sequence[int], width: int, before_pass: Callable[[], None]
) -> npt.NDArray[np.float32]:
    """Logits after each token, from an empty cache in passes of `width` rows. Leaves slot 0 empty.

    Returns:
        float32 [len(tokens), n_vocab], a copy.
    """
    context.trim(0, 0)
    rows = []
    for start in range(0, len(tokens), width):
        before_pass()
        chunk = tokens[start : start + width]
        rows.append(context.decode([Chunk(0, chunk, len(chunk))])[0].copy())
    context.trim(0, 0)
    return np.concatenate(rows)


def _list(widths: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, widths[:-1])), str(widths[-1])]))
