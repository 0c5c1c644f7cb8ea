"""`Row`, the sparse distribution every other part speaks in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A probability distribution over token ids that stores only the tokens that can be drawn."""

    ids: npt.NDArray[np.int32]
    """int32 [k], ascending, k ≥ 1."""
    probs: npt.NDArray[np.float64]
    """float64 [k], all > 0, summing to 1."""

    def prob(self, token: int) -> float:
        """Probability of `token`; 0.0 where the row does not hold it."""
        at = int(np.searchsorted(self.ids, token))
        return float(self.probs[at]) if at < len(self.ids) and self.ids[at] == token else 0.0
