"""The account of a run: counts that add up, and figures derived from the rounds of all answers."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spec_local.batch.failures import failure_type
from spec_local.batch.foreign import UNUSED
from spec_local.batch.records import BadLine, Id, Item
from spec_local.batch.runner import Outcome
from spec_local.sampling.params import Sampling
from spec_local.session.concurrency import Concurrency
from spec_local.speculation.statistics import Statistics, Tally

_MOST_NOTES = 50


@dataclass(slots=True)
class Summary:
    """Counts one run. Memory does not grow with answers; of the input only the ids are remembered."""

    kept: int = 0
    """Answers of an earlier run that still stand."""
    answered: int = 0
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Failures by type."""
    finishes: Counter[str] = field(default_factory=Counter)
    """Answers by how they ended: stop, or the limit that was reached."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cut: int = 0
    """Answers that ended before their schema or grammar was complete."""
    notes: list[str] = field(default_factory=list)
    """What a person should know; at most a few dozen."""
    clock: Callable[[], float] = time.perf_counter
    started: float = field(init=False)
    _tally: Tally = field(default_factory=Tally)
    _ids: dict[Id, int] = field(default_factory=dict)
    _fields: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.started = self.clock()

    # -- what happens ----------------------------------------------------------------------------------------------

    def watch(self, items: Iterable[Item | BadLine]) -> Iterator[Item | BadLine]:
        """Pass items through, noting ids that repeat, fields of other programs that are not used here, and what
        looks like a misspelt parameter."""
        for item in items:
            if item.id is not None:
                first = self._ids.setdefault(item.id, item.line)
                if first != item.line:
                    self.note(
                        f"The id {item.id!r} of line {item.line} was that of line {first} already; both are done."
                    )
            for name in item.unknown if isinstance(item, Item) else ():
                self._note_field(name, item.line)
            yield item

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        if outcome.result is None:
            assert outcome.error is not None
            self.failed += 1
            self.errors[failure_type(outcome.error)] += 1
            return
        result = outcome.result
        self.answered += 1
        self.finishes[result.limit or result.finish_reason] += 1
        self.prompt_tokens += result.prompt_tokens
        self.cached_tokens += result.cached_tokens
        self.completion_tokens += len(result.token_ids)
        self.cut += result.structure == "cut"
        self._tally.add(result.rounds)

    def note(self, text: str) -> None:
        """Remember something for the person; what exceeds a few dozen is counted only."""
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(text)
        elif len(self.notes) == _MOST_NOTES:
            self.notes.append("There are further notes of these kinds.")

    def _note_field(self, name: str, line: int) -> None:
        if name in self._fields or len(self._fields) > 1000:
            return
        self._fields.add(name)
        if name in UNUSED:
            self.note(f"The field {name!r} (line {line}) is not used here: {UNUSED[name]}.")
            return
        near = difflib.get_close_matches(name, [*Sampling.model_fields, "prompt", "messages", "system"], 1, 0.8)
        if near:
            self.note(f"The field {name!r} (line {line}) means nothing here; did you mean {near[0]}?")

    # -- what came of it -------------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """Lines that have a record, kept ones included."""
        return self.kept + self.answered + self.failed

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return self.clock() - self.started

    @property
    def statistics(self) -> Statistics:
        """Figures over the rounds of all answers of this run."""
        return self._tally.statistics()

    def as_dict(self, *, concurrency: Concurrency, stopped: str | None, model: Mapping[str, Any]) -> dict[str, Any]:
        """The object of `--summary`; `lines` = `kept` + `answered` + `failed`.

        Args:
            concurrency: How many sequences were decoded together.
            stopped: Why the run ended before its input did; None: it did not.
            model: What answered.
        """
        seconds = self.seconds
        return {
            "lines": self.done,
            "kept": self.kept,
            "answered": self.answered,
            "failed": self.failed,
            "errors": dict(self.errors.most_common()),
            "finish_reasons": dict(self.finishes.most_common()),
            "cut_structures": self.cut,
            "stopped": stopped,
            "parallel": concurrency.limit,
            "parallel_tokens_per_s": dict(concurrency.speeds),
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
            },
            "timings": {
                "wall_s": seconds,
                "tokens_per_s": self.completion_tokens / seconds if seconds > 0 else None,
                "answers_per_s": self.answered / seconds if seconds > 0 else None,
            },
            "speculation": self.statistics.as_dict(),
            "model": dict(model),
            "notes": list(self.notes),
        }

    def line(self, stopped: str | None) -> str:
        """One sentence for the terminal."""
        figures = self.statistics
        parts = [f"{self.answered} answered"]
        if self.cut:
            parts.append(f"{self.cut} of them cut before the schema or grammar was complete")
        if self.failed:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.errors.most_common(4))
            parts.append(f"{self.failed} failed ({kinds})")
        if self.kept:
            parts.append(f"{self.kept} kept")
        text = f"{', '.join(parts)}; {self.completion_tokens} tokens in {self.seconds:.1f} s"
        if self.completion_tokens and self.seconds > 0:
            text += f", {self.completion_tokens / self.seconds:.1f} tokens/s"
        if figures.acceptance_rate is not None:
            text += f", {figures.acceptance_rate:.0%} of {figures.tested} tested tokens accepted"
        return text + (f"; {stopped}" if stopped else "")
