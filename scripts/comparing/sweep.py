"""The static settings of llama.cpp's server that are swept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NGRAM_KINDS = ("ngram_simple", "ngram_map_k", "ngram_map_k4v", "ngram_mod", "ngram_cache")
SHORT_NGRAM = {"size_n": 4, "size_m": 8}
"""Shorter matches and drafts than llama.cpp's own 12 and 48, which are made for devices whose passes are flat."""


@dataclass(frozen=True)
class Setting:
    """One static configuration of the server."""

    name: str
    types: tuple[str, ...]
    """llama.cpp's speculative types, in the order in which they are tried."""
    n_max: int = 3
    p_min: float = 0.0
    probabilistic: bool = False
    """Rejection sampling with the draft's distribution, where the draft model drafts."""
    ngram: dict[str, dict[str, int]] = field(default_factory=dict)
    """Values that differ from the defaults, by n-gram kind."""

    def as_dict(self) -> dict[str, Any]:
        """For the server's process."""
        return {
            "types": list(self.types),
            "n_max": self.n_max,
            "p_min": self.p_min,
            "probabilistic": self.probabilistic,
            "ngram": self.ngram,
        }


PLAIN = Setting("plain", ("none",))


def settings(
    lengths: Sequence[int], p_mins: Sequence[float], temperature: float, draft: bool = True, ngram: bool = True
) -> list[Setting]:
    """Everything that is swept at one temperature, plain decoding not included.

    Args:
        lengths: Draft lengths.
        p_mins: Probabilities below which the draft model stops early.
        temperature: Above 0 the draft model's `probabilistic` is swept too.
        draft: There is a draft model.
        ngram: Sweep the n-gram kinds.
    """
    found = []
    if draft:
        for probabilistic in (False, True) if temperature > 0 else (False,):
            for n in lengths:
                for p in p_mins:
                    name = f"draft {n}" + (f" p_min {p:g}" if p else "") + (" probabilistic" if probabilistic else "")
                    found.append(Setting(name, ("draft_simple",), n, p, probabilistic))
    if ngram:
        found += [Setting(kind.replace("_", "-"), (kind,)) for kind in NGRAM_KINDS]
        short = {"ngram_simple": SHORT_NGRAM}
        found.append(Setting("ngram-simple short", ("ngram_simple",), ngram=short))
        if draft:
            found.append(Setting("ngram-simple + draft 3", ("ngram_simple", "draft_simple"), 3))
            found.append(Setting("ngram-simple short + draft 3", ("ngram_simple", "draft_simple"), 3, ngram=short))
    return found
