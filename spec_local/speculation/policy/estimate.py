"""How likely a source's tokens are to be accepted on this text: what it says, moved by how it has done here.

One number per source and answer, the *level* in log-odds, follows the surprises (accepted or not, less what was
expected). It stands for all that differs from text to text and from pair to pair, and it ends sources that have gone
wrong with confidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from spec_local.speculation.policy.numbers import Numbers


@dataclass(slots=True)
class Level:
    """What is known of one source on one text."""

    numbers: Numbers
    bias: float = 0.0
    """Log-odds by which this kind of source understates itself."""
    level: float = 0.0
    tested: int = 0

    def rate(self, confidence: float) -> float:
        """Acceptance of a token with this confidence in [0, 1]; 1.0 is certain."""
        return self.rates((confidence,))[0]

    def rates(self, confidence: Iterable[float]) -> list[float]:
        """The same for the tokens of a draft [γ]."""
        factor, least, most = math.exp(self.bias + self.level), self.numbers.least, self.numbers.most
        found: list[float] = []
        last = rate = -1.0
        for c in confidence:
            if c != last:  # tokens next to each other often share a confidence
                last, odds = c, c * factor
                rate = 1.0 if c >= 1.0 else min(max(odds / (odds + 1.0 - c), least), most)
            found.append(rate)
        return found

    def learn(self, confidence: float, kept: bool) -> None:
        """A token was compared with the text."""
        n = self.numbers
        surprise = kept - self.rate(confidence)
        self.tested += 1
        self.level = n.level_memory * self.level + max(n.level_step, n.level_first / self.tested) * surprise

    def rest(self, emitted: int) -> None:
        """So many tokens went by without this source being tested."""
        self.level *= self.numbers.level_memory**emitted
