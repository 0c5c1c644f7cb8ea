"""`/compare`: the last answer run again the other way, and what that changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spec_local.errors import SpecLocalError, UsageError
from spec_local.sampling.params import Sampling
from spec_local.session.result import Result
from spec_local.session.store_records import StoredMessage
from spec_local.speculation.round import Round
from spec_local.speculation.statistics import Statistics, summarise
from spec_local.ui.figures import speed


@dataclass(frozen=True, slots=True)
class Comparison:
    """An answer that is run again: plain if it speculated, with speculation if it was plain."""

    text: str
    token_ids: tuple[int, ...]
    statistics: Statistics
    sampling: Sampling
    """As it was drawn, seed included, and no longer than it got."""
    other_way: bool
    """Whether the second run speculates."""
    rule: str

    @classmethod
    def of(cls, answer: StoredMessage, rounds: Sequence[Round]) -> Comparison:
        """Raises `UsageError` for an answer whose result was not kept."""
        result = answer.result
        if not result.get("token_ids"):
            raise UsageError("The last answer left nothing to compare.", "/regenerate asks for another one.")
        values = {name: entry["value"] for name, entry in result["sampling"].items()}
        values |= {"seed": result["seed"], "max_tokens": len(result["token_ids"])}
        statistics = summarise(rounds)
        return cls(
            text=answer.text,
            token_ids=tuple(result["token_ids"]),
            statistics=statistics,
            sampling=Sampling.parse(values),
            other_way=not statistics.tested,
            rule=result["speculation"]["acceptance_rule"],
        )

    def progress(self, tokens: int) -> str:
        """What to show while it runs."""
        way = "with speculation" if self.other_way else "plain"
        return f"Running the last answer again, {way}: {tokens} of {len(self.token_ids)} tokens"

    def outcome(self, result: Result | None, error: SpecLocalError | None) -> tuple[str, str]:
        """Both speeds and whether the text is the same; and a hint."""
        if error is not None:
            return f"The comparison ended: {error.message}", error.hint
        if result is None or result.finish_reason == "cancelled":
            return "The comparison was stopped.", ""
        again = result.statistics
        speculative, plain = (again, self.statistics) if self.other_way else (self.statistics, again)
        lines = [f"{len(self.token_ids)} tokens, seed {result.seed}, the same prompt and sampling"]
        per_pass = f", {speculative.tokens_per_pass:.2f} tokens per pass" if speculative.tokens_per_pass else ""
        lines.append(f"  speculative  {speed(speculative.tokens_per_s):>12}{per_pass}")
        lines.append(f"  plain        {speed(plain.tokens_per_s):>12}")
        lines.append(_verdict(speculative.tokens_per_s, plain.tokens_per_s))
        same, hint = self._sameness(result)
        return "\n".join([*lines, same]), hint

    def _sameness(self, result: Result) -> tuple[str, str]:
        ours, theirs = self.token_ids, result.token_ids
        if ours == theirs:
            hint = "Each was timed once; `spec-local bench` repeats, and says how sure it is."
            return "The text is the same, token for token.", hint
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        if self.rule != "coupled":
            hint = f"The acceptance rule {self.rule} keeps the distribution, not the text; coupled keeps both."
        else:
            hint = (
                "Passes of one row and of several round differently in this model file, and a near tie fell the other "
                "way; `spec-local verify` shows it, and --pad-width makes both run the same kernels."
            )
        return f"The texts part at token {at + 1} of {len(ours)}.", hint


def _verdict(speculative: float | None, plain: float | None) -> str:
    if not speculative or not plain:
        return "There was too little to time."
    ratio = speculative / plain
    if 0.97 < ratio < 1.03:
        return "Both are equally fast."
    return f"Speculation was {ratio:.2f}× as fast." if ratio > 1 else f"Plain decoding was {1 / ratio:.2f}× as fast."
