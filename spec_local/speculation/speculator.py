"""The round: draft → verify → accept → trim, for many sequences at once.

    draft     the drafters race ahead          x_1 .. x_γ after the last emitted token
    verify    ONE target pass over all         [last, x_1 .. x_γ] of every sequence
    accept    the rule walks the target rows   keeps a prefix of the draft, adds one token of the target's own
    trim      the target's cache is cut back   to tokens[:-1]: the last emitted token is in no cache

Token ids only: text, files and devices are other layers' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence as Many

from spec_local.drafting.draft import GRAMMAR_SOURCE, NO_SOURCE, TEXT_SOURCE, Draft, no_draft
from spec_local.drafting.drafter import CostlyDrafter, Drafter, DraftRequest
from spec_local.drafting.text import TextDrafter
from spec_local.drafting.token_cache import Progress, TokenCache, common_prefix, worth_sharing
from spec_local.errors import BackendError, CacheError, SpecLocalError
from spec_local.language_model import Chunk, LanguageModel, Logits
from spec_local.sampling.logprobs import token_logprob
from spec_local.sampling.row import Row
from spec_local.speculation.controller import Controller, Offer, Outcome, Plan, Seat
from spec_local.speculation.round import Round
from spec_local.speculation.sequence import Sequence

_MOST_READ_AGAIN = 8
"""Accepted tokens at most that the target reads again with a round's own; more are read first."""
Guess = Callable[[Many[int], int], Many[int]]
"""See `DraftRequest.guess`."""


class Speculator:
    """Plays rounds over one target and the drafters that propose to it.

    Args:
        target: The model whose distribution the text follows.
        drafters: By source, in no order; the controller chooses. Empty: plain decoding.
        controller: Decides who drafts and how far.
        max_rows: Most rows in one target pass, over all sequences.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafters: Mapping[str, Drafter],
        controller: Controller,
        *,
        max_rows: int = 32,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target = target
        self.drafters = dict(drafters)
        self.controller = controller
        self.max_rows = min(max_rows, target.n_batch)
        self.off: dict[str, str] = {}
        """Drafters that had to be given up, with the reason."""
        self._clock = clock
        self._cache = TokenCache(target)

    # -- before the first round ------------------------------------------------------------------------------------

    def prefill(self, sequence: Sequence, progress: Progress | None = None) -> int:
        """Bring the target's cache to `tokens[:-1]`, keeping what it shares with the slot's last stream or another's.

        A draft model that the controller wants at hand reads the prompt now too: that is no part of decoding.

        Returns:
            Tokens that were in the cache already.

        Raises:
            Aborted: Stopped on request; what was decoded stays and is used next time.
            BackendError: A pass failed.
        """
        self._forget(sequence.slot, self._cache.shared(sequence.slot, sequence.tokens[:-1]))
        kept = self._fill(sequence, progress) - sequence.read_ahead
        sequence.read_ahead = 0
        self._cache.mark(sequence.slot)  # what another answer, or the next turn, may come back to
        if sequence.speculate and any(isinstance(drafter, CostlyDrafter) for drafter in self.drafters.values()):
            self._open(sequence, len(sequence.tokens) - 1 - kept)
        return kept

    def read_ahead(self, sequences: Many[Sequence]) -> None:
        """Read the prompts of several sequences in one pass, which takes less than a pass for each.

        `prefill` finds them read. It also does what is left: prompts that did not fit the pass, those that begin like
        another one in it (they will take that over), and all of them where the pass failed, each with its own error.
        """
        reading: list[Sequence] = []
        chunks: list[Chunk] = []
        room = self.target.n_batch
        try:
            for s in sequences:
                wanted = s.tokens[:-1]
                self._forget(s.slot, self._cache.shared(s.slot, wanted))
                held = self._hold(s)
                alike = max((common_prefix(wanted, other.tokens) for other in reading), default=0)
                if held < len(wanted) <= held + room and not worth_sharing(alike - held):
                    reading.append(s)
                    chunks.append(Chunk(s.slot, wanted[held:], 0))
                    room -= len(wanted) - held
            if len(chunks) > 1:
                self._cache.decode(chunks)
                for s, chunk in zip(reading, chunks, strict=True):
                    s.read_ahead = len(chunk.tokens)
        except SpecLocalError:  # `prefill` will meet it again, for the sequence that it concerns
            pass

    def _open(self, s: Sequence, read: int) -> None:
        """Have the draft model read the prompt, of which the target had to read so many tokens, where it is wanted."""
        (offers,), _ = self._offers([s], [self._lag(s, self.max_rows)])
        source = self.controller.opens(self._seat(s, offers), read)
        drafter = self.drafters.get(source)
        if isinstance(drafter, CostlyDrafter) and GRAMMAR_SOURCE not in offers:
            try:
                drafter.prefill(s.slot, s.tokens[:-1])
            except BackendError as error:
                self.give_up(source, error.message)

    def release(self, slot: int) -> None:
        """Forget everything about a slot."""
        self._forget(slot, 0)
        self._cut(slot, 0)

    # -- the round -------------------------------------------------------------------------------------------------

    def round(self, sequences: Many[Sequence]) -> list[Round]:
        """Play one round for every unfinished sequence of `sequences`; each gets its `Round` appended.

        A failure that concerns one sequence only ends that one (`finish` "error"); a failing drafter is given up and
        the round is plain decoding.

        Raises:
            Aborted: The pass was stopped on request; nothing was emitted and the caches are consistent.
            BackendError: The target pass failed; nothing was emitted and the caches are consistent.
        """
        active = [sequence for sequence in sequences if sequence.finish is None]
        if not active:
            return []
        lags = [self._lag(s, self.max_rows // len(active)) for s in active]
        started = self._clock()

        # Draft. Text drafts cost nothing, so they are made first and offered; a model runs only where it was chosen.
        offers, text_s = self._offers(active, lags)
        seats = [self._seat(s, offer) for s, offer in zip(active, offers, strict=True)]
        plans = [_certain(plan) for plan in self.controller.plan(seats)]
        drafts, made, model_s = self._draft(active, plans)

        # Verify. One pass; row 0 of a sequence follows its last token, row i follows x_i.
        chunks = [
            Chunk(s.slot, [*s.tokens[-lag:], *draft.tokens], 1 + len(draft))
            for s, lag, draft in zip(active, lags, drafts, strict=True)
        ]
        for s, draft in zip(active, drafts, strict=True):
            if draft.tokens:
                self._cache.mark(s.slot, len(draft))
        before_verify = self._clock()
        logits = self._cache.decode(chunks)
        verify_s = self._clock() - before_verify

        # Accept, token by token up to an end; then trim what the stream did not take.
        counts = [self._accept(s, draft, rows) for s, draft, rows in zip(active, drafts, logits, strict=True)]
        for s in active:
            self._trim(s)

        draft_s = text_s + model_s
        host_s = self._clock() - started - draft_s - verify_s
        outcomes = []
        for s, plan, draft, chunk, drafted, (accepted, tested, emitted) in zip(
            active, plans, drafts, chunks, made, counts, strict=True
        ):
            record = Round(
                source=draft.source if drafted else NO_SOURCE,
                width=len(chunk.tokens),
                drafted=drafted,
                tested=tested,
                accepted=accepted,
                emitted=emitted,
                draft_s=draft_s,
                verify_s=verify_s,
                host_s=host_s,
                reason=plan.reason,
                sequences=len(active),
                plain_s=plan.plain_s,
            )
            s.rounds.append(record)
            outcomes.append(Outcome(plan, record, draft, s.tokens[len(s.tokens) - emitted :]))
        self.controller.observe(outcomes)
        return [outcome.round for outcome in outcomes]

    def _seat(self, s: Sequence, offers: dict[str, Offer]) -> Seat:
        if s.state is None:
            s.state = self.controller.enter()
        return Seat(s.state, offers, len(s.tokens) - 1, s.remaining)

    def _lag(self, s: Sequence, share: int) -> int:
        """Tokens that the coming pass must read before it can draft: the last one alone, in most rounds.

        Where the target's memory could only be cut to a mark, those accepted behind it are read again: a pass of their
        own would cost as much as the round. Where many are missing, they are read first.
        """
        held = len(self._cache.tokens(s.slot))
        lag = len(s.tokens) - held
        if self._cache.holds(s.slot, held):
            if lag == 1:
                return 1
            if 1 < lag <= min(_MOST_READ_AGAIN, share) and self._cache.shared(s.slot, s.tokens) == held:
                return lag
        self._fill(s)
        return 1

    def _offers(self, active: Many[Sequence], lags: Many[int]) -> tuple[list[dict[str, Offer]], float]:
        """What every drafter could give every sequence, and the seconds spent on drafts already made."""
        share = self.max_rows // len(active)
        rooms = [min(s.remaining - 1, share - lag) if s.speculate else 0 for s, lag in zip(active, lags, strict=True)]
        offers: list[dict[str, Offer]] = [{} for _ in active]
        started = self._clock()
        for i, s in enumerate(active):  # what a grammar makes certain is free and sure: nobody else need be asked
            certain = s.walk.forced((), rooms[i]) if s.walk is not None and self.drafters else []
            if certain:
                draft = Draft(certain, None, GRAMMAR_SOURCE, [1.0] * len(certain))
                offers[i][GRAMMAR_SOURCE], rooms[i] = Offer(len(draft), draft), 0
        for source, drafter in list(self.drafters.items()):
            open_to = [(s, room, offer) for s, room, offer in zip(active, rooms, offers, strict=True) if room > 0]
            if isinstance(drafter, CostlyDrafter):
                for s, room, offer in open_to:
                    reach, lag = drafter.reach(s.slot, s.tokens)
                    if reach > 0:
                        offer[source] = Offer(min(room, reach), None, lag)
                continue
            drafts = self._ask(source, [self._request(s, room, lambda _: True) for s, room, _ in open_to])
            for (s, _, offer), draft in zip(open_to, drafts, strict=True):
                assert draft.rows is None, "a plan may cut what it has seen only where it is one-hot"
                if s.walk is not None and draft.tokens:
                    draft = draft.cut(s.walk.legal(draft.tokens))
                if draft.tokens:
                    offer[source] = Offer(len(draft), draft)
        return offers, self._clock() - started

    def _draft(self, active: Many[Sequence], plans: Many[Plan]) -> tuple[list[Draft], list[int], float]:
        """The drafts to submit, the tokens drafted for each, and the seconds the draft model took."""
        started = self._clock()
        drafts: list[Draft] = []
        for plan in plans:
            offer = plan.seat.offers.get(plan.source)
            drafts.append(offer.draft.cut(plan.limit) if offer and offer.draft else no_draft())
        for source in {plan.source for plan in plans if plan.limit > 0}:
            chosen = [i for i, plan in enumerate(plans) if plan.source == source and not drafts[i]]
            if not chosen:
                continue
            requests = [
                self._request(s, plan.limit, _more(self.controller, plan), self._guess(plan, s))
                for s, plan in ((active[i], plans[i]) for i in chosen)
            ]
            for i, draft in zip(chosen, self._ask(source, requests), strict=True):
                drafts[i] = draft
        made = [len(draft) for draft in drafts]
        for i, (s, plan, draft) in enumerate(zip(active, plans, drafts, strict=True)):
            known = next((j for j, token in enumerate(draft.tokens) if token >= self.target.n_vocab), len(draft))
            drafts[i] = draft = draft.cut(known)
            if draft.tokens and (s.rule.tolerates_truncation or draft.rows is None) and plan.source != GRAMMAR_SOURCE:
                drafts[i] = draft.cut(self.controller.shorten(plan, draft))
        return drafts, made, self._clock() - started

    def _ask(self, source: str, requests: Many[DraftRequest]) -> list[Draft]:
        """Drafts from one drafter; empty ones, and no more of it, where it fails."""
        try:
            return self.drafters[source].draft(requests)
        except BackendError as error:
            self.give_up(source, error.message)
            return [no_draft() for _ in requests]

    def _request(
        self, s: Sequence, limit: int, more: Callable[[list[float]], bool], guess: Guess | None = None
    ) -> DraftRequest:
        noise = s.noise.for_round(len(s.tokens))
        return DraftRequest(s.slot, s.tokens, limit, s.draft_transform, noise, s.rule, more, s.walk, guess)

    def _guess(self, plan: Plan, s: Sequence) -> Guess | None:
        """What the text drafter expects behind a draft, for the draft model to read along; None where it is silent."""
        text = self.drafters.get(TEXT_SOURCE)
        if not isinstance(text, TextDrafter) or TEXT_SOURCE not in plan.seat.offers:
            return None

        def guess(drafted: Many[int], rows: int) -> Many[int]:
            ahead = text.ahead(s.slot, drafted, plan.limit)
            return ahead.tokens[: self.controller.guess(plan, ahead, rows)]

        return guess

    def _accept(self, s: Sequence, draft: Draft, logits: Logits) -> tuple[int, int, int]:
        """Apply the rule to float32 [1 + γ, n_vocab] logits; returns (accepted, tested, emitted)."""
        position = len(s.tokens)

        def target_row(i: int) -> Row:
            history = s.transform.history(s.tokens, draft.tokens[:i])
            allowed = None if s.walk is None else s.walk.allowed(draft.tokens[:i])
            return s.transform.row(logits[i], history, position + i, allowed)

        try:
            ruling = s.rule.verify(draft.tokens, draft.rows, target_row, s.noise.for_round(position), position)
        except SpecLocalError as error:
            if draft.tokens and s.rule.reproducible:  # plain decoding may end before it meets the unusable row
                return self._accept(s, draft.cut(0), logits)
            s.fail(error)
            return 0, 0, 0
        emitted = s.emit(ruling.tokens)
        if s.top_logprobs is not None:  # the row before an emitted token is the target's, whoever proposed it
            taken = enumerate(s.tokens[position:])
            s.logprobs.extend(token_logprob(logits[i], token, s.top_logprobs) for i, token in taken)
        tested = min(len(draft), emitted) if s.finish else len(draft)
        return min(ruling.accepted, emitted), tested, emitted

    # -- caches ----------------------------------------------------------------------------------------------------

    def _fill(self, s: Sequence, progress: Progress | None = None) -> int:
        """Bring the target's cache to `tokens[:-1]`; returns how much of it was there."""
        kept = self._hold(s)
        self._cache.fill(s.slot, s.tokens[:-1], progress)
        return kept

    def _hold(self, s: Sequence) -> int:
        """Bring the target's cache to the longest beginning of `tokens[:-1]` that needs no pass; returns its length."""
        wanted = s.tokens[:-1]
        held = self._cache.shared(s.slot, wanted)
        return self._cut(s.slot, self._cache.adopt(s.slot, wanted, held))

    def _trim(self, s: Sequence) -> None:
        """Cut the target's cache to `tokens[:-1]`, or to the mark before; what lacks is read with the next round."""
        try:
            self._cut(s.slot, len(s.tokens) - 1)
        except BackendError as error:
            s.fail(error)

    def _cut(self, slot: int, length: int) -> int:
        """Cut the target's cache to `length` tokens, or fewer where its memory wants it so; returns what is left.

        Raises:
            CacheError: It cannot even be emptied.
        """
        try:
            return self._cache.cut(slot, length)
        except CacheError as error:
            for source in list(self.drafters):
                self.give_up(source, f"the target's cache cannot be cut back: {error.message}")
            return self._cache.cut(slot, 0)

    def _forget(self, slot: int, length: int) -> None:
        """Tell all drafters that the history of `slot` is now only its first `length` tokens."""
        for source, drafter in list(self.drafters.items()):
            try:
                drafter.forget(slot, length)
            except BackendError as error:
                self.give_up(source, error.message)

    def give_up(self, source: str, reason: str) -> None:
        """Stop using a drafter, and remember why."""
        self.drafters.pop(source, None)
        self.off[source] = reason


def _certain(plan: Plan) -> Plan:
    """A plan in which a draft that a grammar makes certain, where there is one, is what is submitted."""
    if GRAMMAR_SOURCE in plan.seat.offers:
        plan.source, plan.limit = GRAMMAR_SOURCE, plan.seat.offers[GRAMMAR_SOURCE].tokens
        plan.reason = "the grammar leaves one way to go on"
    return plan


def _more(controller: Controller, plan: Plan) -> Callable[[list[float]], bool]:
    return lambda confidence: controller.more(plan, confidence)
