"""The one place that turns `Round` records into figures.

Rates have these meanings everywhere: acceptance = accepted / tested; tokens per pass = emitted / rounds (the target's
own token included); rate at position i = rounds that accepted position i / rounds that tested it. Tokens that were
drafted and never tested (not submitted, or behind an end of the text) are counted apart (skipped). Where nothing was
drafted a rate is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import accumulate
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
    """drafted − tested: not submitted, or behind an end of the text."""
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
    tally = Tally()
    tally.add(rounds)
    return tally.statistics()


class Tally:
    """Sums of rounds, for figures over more of them than should be kept."""

    def __init__(self) -> None:
        self._all = _Counts()
        self._sources: dict[str, _Counts] = {}
        self._draft_s = self._verify_s = self._host_s = self._decode_s = self._machine_s = 0.0
        # Over the rounds that know what a plain round costs: their tokens, their time, and that of plain decoding.
        self._known_emitted, self._known_s, self._plain_s = 0, 0.0, 0.0

    def add(self, rounds: Iterable[Round]) -> None:
        """Count further rounds."""
        for r in rounds:
            self._all.add(r)
            if r.source != NO_SOURCE:
                self._sources.setdefault(r.source, _Counts()).add(r)
            self._draft_s += r.draft_s
            self._verify_s += r.verify_s
            self._host_s += r.host_s
            self._decode_s += r.seconds
            self._machine_s += r.seconds / r.sequences
            # A round without a draft is itself the measurement of plain decoding; the others have an estimate of it.
            plain_s = r.seconds if r.source == NO_SOURCE else r.plain_s
            if plain_s is not None and plain_s > 0:
                self._known_emitted += r.emitted
                self._known_s += r.seconds
                self._plain_s += r.emitted * plain_s

    def statistics(self) -> Statistics:
        """The figures of everything added so far."""
        counts, emitted = self._all.statistics(), self._all.emitted
        return Statistics(
            **{name: getattr(counts, name) for name in SourceStatistics.__slots__},
            sources={source: counts.statistics() for source, counts in sorted(self._sources.items())},
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            host_s=self._host_s,
            decode_s=self._decode_s,
            machine_s=self._machine_s,
            tokens_per_s=emitted / self._decode_s if self._decode_s > 0 else None,
            throughput_tokens_per_s=emitted / self._machine_s if self._machine_s > 0 else None,
            plain_tokens_per_s_estimate=self._known_emitted / self._plain_s if self._plain_s > 0 else None,
            speedup_estimate=self._plain_s / self._known_s if self._known_s > 0 else None,
        )


class _Counts:
    """Tokens of the rounds of one source, or of all."""

    def __init__(self) -> None:
        self.rounds = self.emitted = self.drafted = self.tested = self.accepted = 0
        self._ended_at: list[list[int]] = [[], []]  # rounds that tested, and that accepted, exactly i + 1 tokens

    def add(self, r: Round) -> None:
        self.rounds += 1
        self.emitted += r.emitted
        self.drafted += r.drafted
        self.tested += r.tested
        self.accepted += r.accepted
        for ended_at, length in zip(self._ended_at, (r.tested, r.accepted), strict=True):
            if length:
                ended_at.extend([0] * (length - len(ended_at)))
                ended_at[length - 1] += 1

    def statistics(self) -> SourceStatistics:
        # Rounds that got at least so far: sums from the end.
        reached, kept = (list(accumulate(reversed(ended_at)))[::-1] for ended_at in self._ended_at)
        kept += [0] * (len(reached) - len(kept))
        return SourceStatistics(
            rounds=self.rounds,
            emitted=self.emitted,
            drafted=self.drafted,
            tested=self.tested,
            accepted=self.accepted,
            skipped=self.drafted - self.tested,
            acceptance_rate=self.accepted / self.tested if self.tested else None,
            tokens_per_pass=self.emitted / self.rounds if self.rounds else None,
            per_position=tuple(k / n for k, n in zip(kept, reached, strict=True)),
        )
