"""The one function that turns `Round` records into figures.

Rates have these meanings everywhere: acceptance = accepted / tested; tokens per pass = emitted / rounds (the target's
own token included); rate at position i = rounds that accepted position i / rounds that tested it. Tokens that were
drafted and never submitted are counted apart (skipped). Where nothing was drafted a rate is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spec_local.drafting.draft import NO_SOURCE
from spec_local.speculation.round import Round


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """Figures of the rounds that one source drafted for."""

    rounds: int
    emitted: int
    """Tokens those rounds added to the text."""
    drafted: int
    tested: int
    accepted: int
    skipped: int
    """Drafted but never submitted: drafted − tested."""
    acceptance_rate: float | None
    """accepted / tested; None where nothing was tested."""
    tokens_per_pass: float | None
    """emitted / rounds; None without rounds."""
    per_position: tuple[float, ...]
    """Entry i: share of the rounds testing at least i + 1 tokens that accepted at least i + 1. Empty without drafts."""


@dataclass(frozen=True, slots=True)
class Statistics(SourceStatistics):
    """Figures of a stream of tokens, or of several streams together."""

    sources: dict[str, SourceStatistics]
    """By source, for the sources that drafted; the rounds of plain decoding are in the totals only."""
    draft_s: float
    verify_s: float
    host_s: float
    decode_s: float
    """Seconds the streams waited: wall time of all rounds, each counted once per sequence in it."""
    machine_s: float
    """Seconds of machine time: each round's wall time divided by the sequences that shared it."""
    tokens_per_s: float | None
    """Speed of a stream: emitted / decode_s; None where nothing was timed."""
    throughput_tokens_per_s: float | None
    """Speed of the machine: emitted / machine_s; equal to `tokens_per_s` for a stream that was alone."""
    plain_tokens_per_s_estimate: float | None
    """`tokens_per_s` that plain decoding would have had; None where no round knew the cost of a plain one."""
    speedup_estimate: float | None
    """Time of plain decoding / time taken, over the rounds that know both; None where none does."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; a figure that does not exist is left out, not shown as 0."""

        def present(figures: dict[str, Any]) -> dict[str, Any]:
            return {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in figures.items()
                if value is not None and value != ()
            }

        figures = present(asdict(self))
        figures["sources"] = {source: present(values) for source, values in figures["sources"].items()}
        return figures


def summarise(rounds: Iterable[Round]) -> Statistics:
    """All figures of these rounds: of one answer, one sequence or a whole run."""
    rounds = list(rounds)
    by_source: dict[str, list[Round]] = {}
    for r in rounds:
        if r.source != NO_SOURCE:
            by_source.setdefault(r.source, []).append(r)
    sources = {source: _counts(group) for source, group in sorted(by_source.items())}

    emitted = sum(r.emitted for r in rounds)
    decode_s = sum(r.seconds for r in rounds)
    machine_s = sum(r.seconds / r.sequences for r in rounds)
    # A round without a draft is itself the measurement of plain decoding; the estimate stands in only for the others.
    plain = [(r, r.seconds if r.source == NO_SOURCE else r.plain_s) for r in rounds]
    known = [(r, r.emitted * plain_s) for r, plain_s in plain if plain_s is not None and plain_s > 0]
    plain_s = sum(seconds for _, seconds in known)
    known_s = sum(r.seconds for r, _ in known)

    counts = _counts(rounds)
    return Statistics(
        **{name: getattr(counts, name) for name in SourceStatistics.__slots__},
        sources=sources,
        draft_s=sum(r.draft_s for r in rounds),
        verify_s=sum(r.verify_s for r in rounds),
        host_s=sum(r.host_s for r in rounds),
        decode_s=decode_s,
        machine_s=machine_s,
        tokens_per_s=emitted / decode_s if decode_s > 0 else None,
        throughput_tokens_per_s=emitted / machine_s if machine_s > 0 else None,
        plain_tokens_per_s_estimate=sum(r.emitted for r, _ in known) / plain_s if plain_s > 0 else None,
        speedup_estimate=plain_s / known_s if known_s > 0 else None,
    )


def _counts(rounds: Sequence[Round]) -> SourceStatistics:
    drafted = sum(r.drafted for r in rounds)
    tested = sum(r.tested for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    emitted = sum(r.emitted for r in rounds)
    positions = max((r.tested for r in rounds), default=0)
    reached = [sum(r.tested > i for r in rounds) for i in range(positions)]
    kept = [sum(r.accepted > i for r in rounds) for i in range(positions)]
    return SourceStatistics(
        rounds=len(rounds),
        emitted=emitted,
        drafted=drafted,
        tested=tested,
        accepted=accepted,
        skipped=drafted - tested,
        acceptance_rate=accepted / tested if tested else None,
        tokens_per_pass=emitted / len(rounds) if rounds else None,
        per_position=tuple(k / n for k, n in zip(kept, reached, strict=True)),
    )
