"""`Sampling`: every number a person may set about how tokens are chosen, checked once, at the edge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from spec_local.errors import UsageError
from spec_local.sampling.logprobs import MOST_LOGPROBS

BAN = -100.0
"""A logit bias this low or lower bans the token altogether, at any temperature."""

DRAFT_TOP_K = 128
"""Most candidates of a drafted token."""


class Sampling(BaseModel):
    """Sampling parameters of one answer. Frozen; `Transform` turns them into rows.

    The order in which they act is fixed: bias and penalties, top-k, typical, top-p, min-p, temperature (llama.cpp's).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=0.7, ge=0.0, le=100.0, allow_inf_nan=False)
    """Divides the logits of what truncation left; 0 takes the most likely token."""
    top_k: int = Field(default=40, ge=0)
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = Field(default=0.95, ge=0.0, le=1.0, allow_inf_nan=False)
    """Keep the fewest most likely tokens whose probability reaches this; 1 keeps all."""
    min_p: float = Field(default=0.05, ge=0.0, le=1.0, allow_inf_nan=False)
    """Keep tokens at least this many times as likely as the most likely one; 0 keeps all."""
    typical_p: float = Field(default=1.0, ge=0.0, le=1.0, allow_inf_nan=False)
    """Keep the fewest tokens of most typical surprise whose probability reaches this; 1 keeps all."""
    repeat_penalty: float = Field(default=1.0, gt=0.0, le=100.0, allow_inf_nan=False)
    """Divides the positive logits (multiplies the others) of tokens seen recently; 1 is off."""
    presence_penalty: float = Field(default=0.0, ge=-100.0, le=100.0, allow_inf_nan=False)
    """Subtracted once from the logit of each token seen recently."""
    frequency_penalty: float = Field(default=0.0, ge=-100.0, le=100.0, allow_inf_nan=False)
    """Subtracted from the logit of a token for each time it was seen recently."""
    penalty_last_n: int = Field(default=64, ge=-1)
    """How many last tokens (prompt included) are "recent"; 0 turns the penalties off, -1 takes all."""
    logit_bias: dict[int, Annotated[float, Field(le=10_000.0)]] = Field(default_factory=dict)
    """Added to the logit of a token id; -100 or less bans the token."""
    min_tokens: int = Field(default=0, ge=0)
    """No end token before this many tokens of the answer, unless a grammar or schema has come to its end."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Key of all randomness; None lets the program draw one and report it. 0 is a seed like any other."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Most tokens of the answer; None goes on to an end or to the end of the context."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it; where several match, the one that starts first."""
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    """Report each token's log-probability under the target's own softmax, and this many likeliest alternatives."""

    @field_validator("logit_bias")
    @classmethod
    def _bias_is_usable(cls, bias: dict[int, float]) -> dict[int, float]:
        for token, value in bias.items():
            if token < 0:
                raise ValueError(f"token id {token} is negative")
            if math.isnan(value):
                raise ValueError(f"the bias of token {token} is not a number")
        return bias

    def for_draft(self) -> Sampling:
        """For rows that tokens are *drafted* from: the same, with at most `DRAFT_TOP_K` candidates if truncated at all.

        Any draft row is right, since it changes what is accepted and never what is emitted. Where the target's row is
        truncated, what lies outside the likeliest few would hardly ever be accepted, and leaving it out costs a draft
        step hardly any time; an untruncated row is left whole, or its tail could never be drafted.
        """
        truncated = self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1
        if not truncated or 0 < self.top_k <= DRAFT_TOP_K:
            return self
        return self.model_copy(update={"top_k": DRAFT_TOP_K})

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Sampling:
        """Build from outside data (flags, a JSON line).

        Raises:
            UsageError: A name is unknown or a value is out of range; the message names the first one.
        """
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                known = ", ".join(sorted(cls.model_fields))
                raise UsageError(f"There is no sampling parameter {name!r}.", f"Known are: {known}.") from None
            raise UsageError(
                f"The sampling parameter {name} cannot be {first['input']!r}: {first['msg']}.",
                "Correct the value, or leave it out for the default.",
            ) from None
