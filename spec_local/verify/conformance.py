"""The conformance run: the same kernels for every arm, so speculation must give the very same tokens.

Every target pass, plain decoding's too, is evaluated with the same number of rows; then rounding is the same whatever
was drafted, and there is no excuse for a difference. The arms cover who drafts (draft model, the text itself, two
adversaries that know the answer), how far, at which temperature, with which seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from spec_local.drafting.draft import MODEL_SOURCE, TEXT_SOURCE
from spec_local.drafting.drafter import Drafter
from spec_local.drafting.text import TextDrafter
from spec_local.errors import CacheError
from spec_local.language_model import Chunk
from spec_local.sampling.params import Sampling
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.statistics import summarise
from spec_local.verify.adversary import ALWAYS_WRONG, SOURCE, WRONG_IN_TURN, always_wrong, right_then_wrong
from spec_local.verify.findings import Kind, Problem, broke_off
from spec_local.verify.margins import chooser, miss
from spec_local.verify.rig import Rig, feed

CONTENDERS = (MODEL_SOURCE, TEXT_SOURCE, ALWAYS_WRONG, WRONG_IN_TURN)
"""Who drafts: the draft model, the text itself, two adversaries that know the answer."""
Arms = tuple[tuple[str, int], ...]
"""Contenders with their draft lengths."""
Report = Callable[[str], None]
"""Told what is being done now."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One answer that every arm must repeat."""

    prompt: str
    sampling: Sampling
    """With seed and max_tokens."""
    arms: Arms


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which an arm left plain decoding."""

    index: int
    """Tokens of the answer that agree."""
    plain: int
    """Plain decoding's token, and the arm's; -1 where the answer had ended."""
    speculative: int
    plain_text: str
    speculative_text: str
    margin: float
    """How much the speculative token's logit would have to rise to be chosen; inf where no rise does it."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm of one setting."""

    drafter: str
    length: int
    temperature: float
    seed: int
    tokens: int
    """Tokens of the answer."""
    rounds: int
    tested: int
    accepted: int
    difference: Difference | None
    failure: Problem | None = None
    """What broke, where the run did not come to its end."""

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.drafter} {self.length}, T {self.temperature:g}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Conformance:
    """What all arms gave."""

    pad_width: int
    plain_tokens: int
    """Tokens of the plain answers that were repeated."""
    arms: tuple[ArmResult, ...]
    problems: tuple[Problem, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "pad_width": self.pad_width,
            "plain_tokens": self.plain_tokens,
            "identical": sum(arm.difference is None and arm.failure is None for arm in self.arms),
            "arms": [
                {**asdict(arm), "failure": None if arm.failure is None else arm.failure.message} for arm in self.arms
            ],
        }


def conformance(rig: Rig, settings: tuple[Setting, ...], report: Report) -> Conformance:
    """Run every setting plainly and with every arm, in passes of one width."""
    arms: list[ArmResult] = []
    plain_tokens = 0
    for setting in settings:
        report(f"conformance: plain decoding at temperature {setting.sampling.temperature:g}")
        try:
            plain = rig.play_padded(setting.prompt, setting.sampling, {}, 0)
        except (AssertionError, CacheError) as error:
            arms.append(_broke_off(rig, _empty("plain", 0, setting), error))
            continue
        plain_tokens += len(plain.emitted)
        for drafter, length in setting.arms:
            report(f"conformance: {drafter} drafts of {length} at temperature {setting.sampling.temperature:g}")
            made = contender(drafter, rig.padded_draft, plain.tokens, rig.padded_target.n_vocab, length)
            if made is not None:
                arms.append(_arm(rig, setting, plain, drafter, made, length))
    return Conformance(rig.pad_width, plain_tokens, tuple(arms), tuple(_problems(arms)))


def contender(name: str, model: Drafter | None, answer: list[int], n_vocab: int, longest: int) -> Drafter | None:
    """The drafter of an arm.

    Args:
        name: One of `CONTENDERS`.
        model: The draft model; None where there is none, and then there is no such arm.
        answer: Prompt and answer of plain decoding.
        n_vocab: Entries in the vocabulary.
        longest: Most tokens in a draft.
    """
    if name == MODEL_SOURCE:
        return model
    if name == TEXT_SOURCE:
        return TextDrafter()
    if name == ALWAYS_WRONG:
        return always_wrong(answer, n_vocab)
    return right_then_wrong(answer, n_vocab, longest)


def _arm(rig: Rig, setting: Setting, plain: Sequence, name: str, drafter: Drafter, length: int) -> ArmResult:
    source = SOURCE if name in (ALWAYS_WRONG, WRONG_IN_TURN) else name
    result = _empty(name, length, setting)
    try:
        run = rig.play_padded(setting.prompt, setting.sampling, {source: drafter}, length)
    except (AssertionError, CacheError) as error:
        return _broke_off(rig, result, error)
    figures = summarise(run.rounds)
    return replace(
        result,
        tokens=len(plain.emitted),
        rounds=figures.rounds,
        tested=figures.tested,
        accepted=figures.accepted,
        difference=_difference(rig, plain, run),
    )


def _empty(name: str, length: int, setting: Setting) -> ArmResult:
    return ArmResult(name, length, setting.sampling.temperature, setting.sampling.seed or 0, 0, 0, 0, 0, None)


def _broke_off(rig: Rig, arm: ArmResult, error: AssertionError | CacheError) -> ArmResult:
    """The arm with what a check inside the program said; the padded caches are empty afterwards."""
    rig.padded_target.trim(0, 0)
    rig.padded.release(0)
    return replace(arm, failure=broke_off("conformance", arm.name, error))


def _difference(rig: Rig, plain: Sequence, run: Sequence) -> Difference | None:
    if plain.tokens == run.tokens:
        return None
    longest = max(len(plain.tokens), len(run.tokens))
    theirs, ours = (sequence.tokens + [-1] * (longest - len(sequence.tokens)) for sequence in (plain, run))
    at = next(i for i in range(longest) if theirs[i] != ours[i])
    gap = float("inf")
    if ours[at] >= 0:
        # The logits plain decoding saw there, from an empty cache, in passes of the same width.
        rig.padded.release(0)
        target = rig.padded_target
        prefix = plain.tokens[:at]
        start = plain.prompt_length - 1
        feed(rig.padded_target, prefix[:start])
        logits = None
        for token in prefix[start:]:
            logits = target.decode([Chunk(0, [token], 1)])[0][0]
        assert logits is not None
        gap = miss(chooser(plain, plain.rule, plain.noise, at), logits.copy(), ours[at])
        target.trim(0, 0)
    texts = ["the end" if token < 0 else rig.text(token) for token in (theirs[at], ours[at])]
    return Difference(at - plain.prompt_length, theirs[at], ours[at], texts[0], texts[1], gap)


def _problems(arms: list[ArmResult]) -> list[Problem]:
    problems = []
    for arm in arms:
        if arm.failure is not None:
            problems.append(arm.failure)
        elif (d := arm.difference) is not None:
            message = (
                f"{arm.name}: token {d.index + 1} is {d.speculative_text} ({d.speculative}) instead of "
                f"{d.plain_text} ({d.plain}), {d.margin:.3g} in logits away from being chosen"
            )
            problems.append(Problem("conformance", Kind.TOKENS, message))
        elif arm.drafter == ALWAYS_WRONG and arm.accepted:
            message = f"{arm.name}: {arm.accepted} of {arm.tested} wrong drafted tokens count as accepted"
            problems.append(Problem("conformance", Kind.TOKENS, message))
    return problems
