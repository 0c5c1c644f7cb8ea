"""Replaying draft policies on recorded text, without a model and without a clock.

Under the coupled rule, and at temperature 0 under any, which drafted tokens are accepted does not depend on who decides
how many to draft. So one plain run of the target, and one pass of the draft over its text, fix a `Trace`; with a table
of costs it gives the speed of every policy, and of an oracle that knows each outcome beforehand. What the draft would
have drawn behind a wrong token of its own is not in the trace; it counts as wrong, with the confidence it had on the
target's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spec_local.drafting.draft import MODEL_SOURCE, NO_SOURCE, TEXT_SOURCE, Draft, no_draft
from spec_local.drafting.text import TextFollower
from spec_local.speculation.controller import Controller, Offer, Outcome, Plan, Seat
from spec_local.speculation.cost import CostProfile, Curve
from spec_local.speculation.round import Round

LONGEST = 16
"""Most tokens in one draft, for policies and oracle alike."""
LAGS = 64
"""The oracle tells draft lags apart up to this many tokens."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One answer of the target and what the draft thought of it."""

    name: str
    kind: str
    """The kind of text: "code", "edit", "chat", ..."""
    temperature: float
    prompt: list[int]
    """Prompt ids; the text drafter drafts from them too."""
    tokens: list[int]
    """The target's n tokens."""
    own: npt.NDArray[np.int32]
    """int32 [n]: the draft model's own token at this position, on the target's text so far."""
    confidence: npt.NDArray[np.float64]
    """float64 [n]: the draft model's probability of that token, in [0, 1]."""

    @property
    def agree(self) -> npt.NDArray[np.bool_]:
        """bool [n]: the draft model's own token is the target's."""
        return np.equal(self.own, self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds by rows, as measured: what a replayed round takes."""

    name: str
    target: Mapping[int, float]
    draft: Mapping[int, float]

    def profile(self) -> CostProfile:
        """A fresh profile that starts from these points."""
        return CostProfile(Curve(self.target), Curve(self.draft))


class TraceText:
    """What the text drafter offers at each position of a trace; a function of the text, so computed once."""

    def __init__(self, trace: Trace, longest: int = LONGEST) -> None:
        follower = TextFollower()
        history = list(trace.prompt)
        self.drafts: list[tuple[list[int], list[float]]] = []
        """[n]: proposal before token i, and its confidence."""
        self.right: list[int] = []
        """[n]: leading tokens of the proposal that the text really has."""
        for i, token in enumerate(trace.tokens):
            follower.sync(history)
            drafted, confidence = follower.propose(longest)
            right = 0
            for x, y in zip(drafted, trace.tokens[i:], strict=False):
                if x != y:
                    break
                right += 1
            self.drafts.append((drafted, confidence))
            self.right.append(right)
            history.append(token)


Jitter = Callable[[], float]
"""Factor on the seconds of one pass, drawn per pass; 1.0 for a quiet machine."""


def replay(
    trace: Trace,
    controller: Controller,
    costs: Costs,
    sources: Iterable[str] = (MODEL_SOURCE, TEXT_SOURCE),
    text: TraceText | None = None,
    state: object | None = None,
    jitter: Jitter = lambda: 1.0,
    read: int | None = None,
) -> list[Round]:
    """The rounds `controller` would make of this trace on a machine with these costs.

    Args:
        trace: The text; its first token is left out of the account.
        controller: Keeps what it learns: replay a list of traces with one controller to see it warm.
        costs: Seconds of every pass. The controller may hold other beliefs about them.
        sources: The drafters that exist.
        text: Precomputed offers of the text drafter.
        state: The controller's state for the sequence; None: a new one.
        jitter: Noise on the seconds.
        read: Tokens of the prompt that the draft model has read; None: all.
    """
    target, model = Curve(costs.target), Curve(costs.draft)
    sources = tuple(sources)
    text = (text or TraceText(trace)) if TEXT_SOURCE in sources else None
    state = state or controller.enter()
    prompt, n = len(trace.prompt), len(trace.tokens)
    known = prompt if read is None else read  # tokens the draft model's cache holds
    at = 1  # tokens emitted
    rounds = []
    while at < n:
        room = n - at - 1
        offers: dict[str, Offer] = {}
        if room and MODEL_SOURCE in sources:
            offers[MODEL_SOURCE] = Offer(min(room, LONGEST), lag=prompt + at - known)
        if room and text is not None and text.drafts[at][0]:
            drafted, likely = text.drafts[at]
            offers[TEXT_SOURCE] = Offer(
                min(room, len(drafted)), Draft(drafted[:room], None, TEXT_SOURCE, likely[:room])
            )
        (plan,) = controller.plan([Seat(state, offers, prompt + at, n - at)])

        draft, draft_s, right = no_draft(), 0.0, 0
        if plan.source == TEXT_SOURCE:
            assert text is not None
            draft, right = (offers[TEXT_SOURCE].draft or draft).cut(plan.limit), text.right[at]
        elif plan.source == MODEL_SOURCE:
            draft, right = _model_draft(trace, at, plan, controller, text)
            draft_s = sum(model.seconds(rows) * jitter() for rows in draft.passes)
        drafted_n = len(draft)
        if drafted_n:
            draft = draft.cut(controller.shorten(plan, draft))
        accepted = min(right, len(draft))
        emitted = trace.tokens[at : at + accepted + 1]
        verify_s = target.seconds(1 + len(draft)) * jitter()
        source = plan.source if drafted_n else NO_SOURCE
        r = Round(
            source, 1 + len(draft), drafted_n, len(draft), accepted, len(emitted), draft_s, verify_s, 0.0, plan.reason,
            plain_s=plan.plain_s,
        )  # fmt: skip
        rounds.append(r)
        controller.observe([Outcome(plan, r, draft, emitted)])
        if source == MODEL_SOURCE:
            known = prompt + at + min(accepted, drafted_n - 1)
        at += len(emitted)
    return rounds


def _model_draft(
    trace: Trace, at: int, plan: Plan, controller: Controller, text: TraceText | None
) -> tuple[Draft, int]:
    """What the draft model would draft before token `at`, and how many of its first tokens are right."""
    draft = Draft([], None, MODEL_SOURCE, [])
    rows, ready = plan.seat.offers[MODEL_SOURCE].lag, 0  # ready: tokens whose rows an earlier pass has left behind
    while not draft.tokens or (len(draft) < plan.limit and (ready or controller.more(plan, draft.confidence))):
        here = at + len(draft)
        if ready:
            ready -= 1
        else:
            if text is not None and text.drafts[here][0]:
                expected, likely = text.drafts[here]
                count = controller.guess(plan, Draft(expected, None, TEXT_SOURCE, likely), rows)
                expected = expected[: min(count, plan.limit - len(draft) - 1)]
                for token in expected:
                    # Behind a wrong token of its own the model is off the trace, and so is what it reads along.
                    if not token == trace.own[here + ready] == trace.tokens[here + ready]:
                        break
                    ready += 1
                rows += len(expected)
            draft.passes.append(rows)
            rows = 1
        draft.tokens.append(int(trace.own[here]))
        draft.confidence.append(float(trace.confidence[here]))
    right = 0
    while right < len(draft) and draft.tokens[right] == trace.tokens[at + right]:
        right += 1
    return draft, right


def seconds(rounds: Iterable[Round]) -> float:
    """Total seconds of these rounds."""
    return sum(r.seconds for r in rounds)


def plain_seconds(trace: Trace, costs: Costs) -> float:
    """Seconds of the trace in plain decoding."""
    return (len(trace) - 1) * Curve(costs.target).seconds(1)


def oracle_seconds(
    trace: Trace, costs: Costs, sources: Iterable[str] = (MODEL_SOURCE, TEXT_SOURCE), text: TraceText | None = None
) -> float:
    """Least seconds any policy could take that knows every outcome: dynamic programming over position and draft lag.

    Each round drafts from one source, 0..LONGEST tokens.
    """
    sources = tuple(sources)
    text = (text or TraceText(trace)) if TEXT_SOURCE in sources else None
    n = len(trace)
    target, model = Curve(costs.target), Curve(costs.draft)
    v = np.array([target.seconds(rows) for rows in range(LONGEST + 2)])
    v[1:] = np.minimum.accumulate(v[:0:-1])[::-1]  # where more rows cost less, draft fillers
    catch_up = np.array([model.seconds(max(lag, 1)) for lag in range(LAGS + 1)])
    step = catch_up[1]
    lags = np.arange(LAGS + 1)
    left = np.zeros((n + 1, LAGS + 1))  # [emitted, lag]: least seconds still to come
    run = np.zeros(n + 1, dtype=int)
    for i in range(n - 1, -1, -1):
        run[i] = run[i + 1] + 1 if trace.agree[i] else 0
    for i in range(n - 1, 0, -1):
        best = v[1] + left[i + 1, np.minimum(lags + 1, LAGS)]
        room = min(n - i - 1, LONGEST)
        if text is not None:
            for k in range(1, min(text.right[i], room) + 1):
                np.minimum(best, v[1 + k] + left[i + k + 1, np.minimum(lags + k + 1, LAGS)], out=best)
        longest = min(int(run[i]), room)
        if MODEL_SOURCE in sources and longest:
            drafted = min((k - 1) * step + v[1 + k] + left[i + k + 1, 2] for k in range(1, longest + 1))
            np.minimum(best, catch_up + drafted, out=best)
        left[i] = best
    return float(left[1, 1]) if n > 1 else 0.0
