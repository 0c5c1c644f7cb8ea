"""Logits to distributions, distributions to tokens, drafts to emitted tokens. Pure numpy, no input or output.

* `Sampling` holds what a person may set; `Transform` turns one row of logits into a sparse `Row` by it.
* `Noise` is randomness as a pure function of seed, purpose, position and token; `Noise.choose` is the only draw.
* `RULES` holds the acceptance rules: coupled (the default), rejection, block. Each emits exactly the target's law.

The package knows no models, caches or text: it sees arrays of logits, token ids and positions, and a grammar as a
protocol (`constraint`). Nothing in it is random: equal arguments give equal results.
"""

from __future__ import annotations

from spec_local.sampling.acceptance import RULES, AcceptanceRule, Block, Coupled, Rejection, Ruling, TargetRow
from spec_local.sampling.logprobs import TokenLogprob, token_logprob
from spec_local.sampling.noise import Chance, Noise, Purpose
from spec_local.sampling.params import BAN, Sampling
from spec_local.sampling.row import Row
from spec_local.sampling.transform import Transform

__all__ = [
    "BAN",
    "RULES",
    "AcceptanceRule",
    "Block",
    "Chance",
    "Coupled",
    "Noise",
    "Purpose",
    "Rejection",
    "Row",
    "Ruling",
    "Sampling",
    "TargetRow",
    "TokenLogprob",
    "Transform",
    "token_logprob",
]
