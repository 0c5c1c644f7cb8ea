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
from spec_local.llama.batch import pieces
from spec_local.llama.model_context import ModelContext
from spec_local.session.loading import Loaded, LoadProgress, keep_on
from spec_local.session.options import EngineOptions
from spec_local.session.saved import identity, read_saved, saved_path, write_saved

_TEXT = "def is_prime(n):\n    if n < 2:\n        return False  # the sea was calm"
"""Short, since the first start waits for it; `spec-local verify` measures ε on whole answers."""
_NEAR = 256
_FAR = _NEAR + 16
"""Over more cells than `_NEAR` llama.cpp shares the attention of a single row out among threads, and sums in another
order than for several rows: what is exact for a short text is looked at again behind so many tokens."""
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
    bitwise_within: int = 0
    """Tokens of a context in which the bits are the same, though in a longer one they differ; 0: no such limit."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "widths": list(self.widths)}

    def sentence(self) -> str:
        """For a person."""
        if self.tier == "bitwise":
            if not self.widths:
                return "bit for bit: every pass has the same width"
            return f"bit for bit: passes of {_list(self.widths)} rows gave the same bits as one-row passes"
        flips = f"{self.flips} of {self.positions}" if self.flips else f"none of {self.positions}"
        near = f"bit for bit within {self.bitwise_within} tokens; beyond, " if self.bitwise_within else ""
        return (
            f"{near}tolerance {self.epsilon:.2g}: logits differ by up to that between one-row passes and passes of "
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
    done = 0
    tokens = context.model.vocabulary.tokenize(_TEXT)[: min(_TOKENS, context.n_ctx - 1)]
    passes = sum(-(-len(tokens) // width) for width in (1, *widths))

    def before_pass() -> None:
        nonlocal done
        go_on(done / passes)
        done = (done + 1) % passes

    epsilon, flips = _compare(context, tokens, widths, 0, before_pass)
    positions, within = len(tokens) * len(widths), 0
    if epsilon == 0.0 and context.memory.free and context.n_ctx > _FAR + len(tokens):
        for piece in pieces(Chunk(0, (tokens * _FAR)[:_FAR], 0), min(_FAR, context.n_batch)):
            context.decode([piece])
        epsilon, far_flips = _compare(context, tokens, widths, _FAR, before_pass)
        context.trim(0, 0)
        flips, positions, within = flips + far_flips, 2 * positions, _NEAR if epsilon else 0
    return Numerics("bitwise" if epsilon == 0.0 else "tolerance", epsilon, flips, positions, tuple(widths), within)


def _compare(
    context: ModelContext, tokens: Sequence[int], widths: Sequence[int], held: int, before_pass: Callable[[], None]
) -> tuple[float, int]:
    """Largest difference of a logit between passes of one row and of `widths` rows behind `held` tokens; and how often
    the likeliest token differed."""
    epsilon, flips = 0.0, 0
    single = evaluate(context, tokens, 1, before_pass, held)
    for width in widths:
        wide = evaluate(context, tokens, width, before_pass, held)
        epsilon = max(epsilon, float(np.abs(wide - single).max()))
        flips += int((wide.argmax(axis=1) != single.argmax(axis=1)).sum())
    return epsilon, flips


def evaluate(
    context: ModelContext, tokens: Sequence[int], width: int, before_pass: Callable[[], None], held: int = 0
) -> npt.NDArray[np.float32]:
    """Logits after each token, in passes of `width` rows, behind the first `held` tokens of slot 0, which it leaves.

    Returns:
        float32 [len(tokens), n_vocab], a copy.
    """
    context.trim(0, held)
    rows = []
    for start in range(0, len(tokens), width):
        before_pass()
        chunk = tokens[start : start + width]
        rows.append(context.decode([Chunk(0, chunk, len(chunk))])[0].copy())
    context.trim(0, held)
    return np.concatenate(rows)


def _list(widths: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, widths[:-1])), str(widths[-1])]))
