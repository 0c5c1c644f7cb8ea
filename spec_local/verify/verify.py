"""Is speculation exact here, with this pair, on this machine? Four checks, and a verdict anybody can repeat.

1. *Conformance*: passes padded to one width, many arms, the very same tokens.
2. *Audit*: ordinary runs, replayed one token at a time; every disagreement must be a near-tie.
3. *Distribution*: what is emitted above temperature 0 follows the target's own distribution.
4. *Cache*: after an answer both caches hold exactly its tokens.

Everything is seeded: two runs on one machine do the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spec_local.drafting.draft import MODEL_SOURCE, TEXT_SOURCE
from spec_local.drafting.drafter import Drafter
from spec_local.errors import CacheError, UsageError
from spec_local.sampling import RULES
from spec_local.sampling.params import Sampling
from spec_local.session.engine import Engine
from spec_local.session.generation import Request
from spec_local.session.numerics import Numerics
from spec_local.speculation.controller import Controller, FixedController
from spec_local.verify.adversary import ALWAYS_WRONG, SOURCE, WRONG_IN_TURN, right_then_wrong
from spec_local.verify.audit import Audit, Replay, audit, replay
from spec_local.verify.cache_audit import CacheAudit, LiveCache, cache_audit, look
from spec_local.verify.conformance import Arms, Conformance, Report, Setting, conformance
from spec_local.verify.distribution import Distribution, distribution
from spec_local.verify.findings import Problem, broke_off, culprit
from spec_local.verify.recording import Recorder
from spec_local.verify.rig import Rig

PROMPTS = {
    "code": "Write a Python function that checks whether a number is prime.",
    "edit": (
        "Repeat this list, and change every 3 to a 4:\n"
        "item 1: 13 apples\nitem 2: 23 pears\nitem 3: 33 plums\nitem 4: 43 apples\n"
    ),
    "chat": "Describe a rainy evening in a small harbour town.",
}
WRONG_DRAFT = 3
"""Tokens of a draft that goes wrong in turn."""
PAD_WIDTH, QUICK_PAD_WIDTH = 8, 4
"""Rows of every conformance pass, where the person does not say."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One ordinary answer to be recorded, audited and tested."""

    name: str
    prompt: str
    sampling: Sampling
    controller: Controller | None
    """None: the engine's own."""
    wrong: bool = False
    """Drafts of somebody who knows the answer and goes wrong at every place in turn: whatever the pair's own drafts are
    worth, there is something to reject."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    settings: tuple[Setting, ...]
    live: tuple[LiveRun, ...]
    resampled_tokens: int
    pad_width: int


@dataclass(frozen=True, slots=True)
class Verification:
    """Everything that was found."""

    conformance: Conformance
    audit: Audit
    distribution: Distribution
    cache: CacheAudit
    problems: tuple[Problem, ...]
    """What is wrong, of all checks; empty where all is well."""
    numerics: Numerics
    model: dict[str, Any]
    rule: str
    quick: bool
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The object of `spec-local verify --json`; plain types, numbers finite or null."""
        kind = culprit(list(self.problems))
        found = {
            "passed": self.passed,
            "kind": None if kind is None else kind.name.lower(),
            "problems": [problem.as_dict() for problem in self.problems],
            "acceptance_rule": self.rule,
            "quick": self.quick,
            "seconds": self.seconds,
            "numerics": self.numerics.as_dict(),
            "conformance": self.conformance.as_dict(),
            "audit": self.audit.as_dict(),
            "distribution": self.distribution.as_dict(),
            "cache": self.cache.as_dict(),
            "model": self.model,
        }
        finite: dict[str, Any] = _finite(found)
        return finite


def make_plan(engine: Engine, quick: bool, sampling: Sampling, pad_width: int = 0) -> Plan:
    """What to run: minutes in full, under one with `quick`, on two cores with the default pair.

    Args:
        engine: The engine to be checked.
        quick: Do less of everything.
        sampling: The sampling of ordinary answers; its limits and stops are replaced.
        pad_width: Rows of every conformance pass; 0: 8, or 4 with `quick`. Drafts are as long as it allows.
    """
    own = engine.complete(sampling)[0]
    tokens = 8 if quick else 32
    width = max(2, pad_width or (QUICK_PAD_WIDTH if quick else PAD_WIDTH))
    longest = width - 1

    def limited(temperature: float, seed: int, count: int, **values: object) -> Sampling:
        fixed = {"temperature": temperature, "seed": seed, "max_tokens": count, "min_tokens": count, "stop": ()}
        return own.model_copy(update={**fixed, **values, "logprobs": None})

    warm = own.temperature or 0.8
    greedy_arms: Arms = ((MODEL_SOURCE, longest), (ALWAYS_WRONG, longest), (WRONG_IN_TURN, longest))
    sampled_arms: Arms = ((MODEL_SOURCE, min(3, longest)), (TEXT_SOURCE, longest))
    if not quick:
        greedy_arms += ((MODEL_SOURCE, 1), (TEXT_SOURCE, longest), (ALWAYS_WRONG, 1))
        sampled_arms += ((MODEL_SOURCE, longest), (ALWAYS_WRONG, longest), (WRONG_IN_TURN, longest))
    settings = [Setting(PROMPTS["code"], limited(0.0, 1, tokens), greedy_arms)]
    if RULES[engine.options.acceptance].reproducible:
        settings.append(Setting(PROMPTS["edit"], limited(0.8, 2, tokens), sampled_arms))
        if not quick:
            open_ended = limited(1.0, 3, tokens, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0)
            settings.append(Setting(PROMPTS["chat"], open_ended, sampled_arms))
            settings.append(Setting(PROMPTS["code"], limited(0.8, 4, tokens), sampled_arms))
    elif not quick:
        settings.append(Setting(PROMPTS["edit"], limited(0.0, 2, tokens), greedy_arms))

    drafting = FixedController((MODEL_SOURCE, TEXT_SOURCE), 4)
    count = 10 if quick else 64
    untruncated = limited(1.0, 13, count, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0)
    live = [
        LiveRun("as configured, T 0", PROMPTS["code"], limited(0.0, 11, count), None),
        LiveRun(f"drafts of 4, T {warm:g}", PROMPTS["edit"], limited(warm, 12, count), drafting),
        LiveRun("drafts of 4, T 1, untruncated", PROMPTS["chat"], untruncated, drafting),
    ]
    turns = FixedController((SOURCE,), WRONG_DRAFT)
    live.append(LiveRun("wrong drafts in turn, T 0", PROMPTS["code"], limited(0.0, 11, count), turns, wrong=True))
    if not quick:
        live.append(LiveRun("drafts of 4, T 0", PROMPTS["edit"], limited(0.0, 14, count), drafting))
        live.append(LiveRun(f"as configured, T {warm:g}", PROMPTS["chat"], limited(warm, 15, count), None))
        again = untruncated.model_copy(update={"seed": 16})
        live.append(LiveRun("drafts of 4, T 1, untruncated, again", PROMPTS["code"], again, drafting))
    return Plan(tuple(settings), tuple(live), 8_000 if quick else 43_000, width)


def verify(
    engine: Engine,
    *,
    quick: bool = False,
    sampling: Sampling | None = None,
    pad_width: int = 0,
    plan: Plan | None = None,
    report: Report = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Verification:
    """Run all four checks.

    Args:
        engine: A loaded engine without padding; it can answer again afterwards.
        quick: Under a minute on two cores with the default pair, instead of several.
        sampling: How ordinary answers are drawn; None: as the model recommends.
        pad_width: Rows of every conformance pass; 0: 8, or 4 with `quick`.
        plan: What to run; None: what `make_plan` says.
        report: Told what is being done.
        cancelled: Asked between rounds; True stops.

    Raises:
        Aborted: `cancelled` said so.
        UsageError: This target is never decoded speculatively, or the engine's passes are padded.
        SpecLocalError: A model or the backend failed.
    """
    started = time.perf_counter()
    if not engine.loaded.target.memory.free:
        raise UsageError(
            f"There is nothing to verify this way: {engine.loaded.target.memory.reason}.",
            "The checks need a target whose cache can be cut to any length.",
        )
    if engine.options.pad_width:
        raise UsageError("An engine with padded passes has no ordinary runs to verify.", "Load it without pad_width.")
    plan = plan or make_plan(engine, quick, sampling or Sampling(), pad_width)
    items: list[Setting | LiveRun] = [*plan.settings, *plan.live]
    prompts = {item.prompt for item in items}
    longest = max(len(engine.tokenize(Request(prompt))[0]) for prompt in prompts)
    room = longest + max(item.sampling.max_tokens or 0 for item in items) + 64
    with Rig(engine, room, plan.pad_width, cancelled) as rig:
        same = conformance(rig, plan.settings, report)
        runs: list[tuple[Recorder, Replay, list[LiveCache]]] = []
        failures: list[Problem] = []
        for run in plan.live:
            report(f"ordinary run: {run.name}")
            try:
                recorder = rig.play(run.prompt, run.sampling, run.controller, _drafters(rig, run))
                caches = look(rig, recorder)
            except (AssertionError, CacheError) as error:
                failures.append(broke_off("ordinary run", run.name, error))
                rig.start_over()
                continue
            report(f"replay, one token at a time: {run.name}")
            runs.append((recorder, replay(rig, run.name, recorder, len(runs)), caches))
        audited = audit([found for _, found, _ in runs])
        held = cache_audit([(found, caches) for _, found, caches in runs])
        report("distribution")
        rule = RULES[engine.options.acceptance]
        law = distribution([(r, found) for r, found, _ in runs], rule, plan.resampled_tokens, rig.check_cancelled)
    return Verification(
        conformance=same,
        audit=audited,
        distribution=law,
        cache=held,
        problems=(*same.problems, *audited.problems, *law.problems, *held.problems, *failures),
        numerics=engine.numerics,
        model=engine.describe(),
        rule=rule.name,
        quick=quick,
        seconds=time.perf_counter() - started,
    )


def _drafters(rig: Rig, run: LiveRun) -> dict[str, Drafter] | None:
    """Who drafts in a run; None: the engine's own."""
    if not run.wrong:
        return None
    answer = rig.play(run.prompt, run.sampling, FixedController((), 0)).sequence.tokens
    return {SOURCE: right_then_wrong(answer, rig.engine.loaded.target.n_vocab, WRONG_DRAFT)}


def _finite(value: Any) -> Any:
    """The same with numbers that JSON has no word for as None, and tuples as lists."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value
