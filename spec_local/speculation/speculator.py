"""The round: draft → verify → accept → trim, for many sequences at once, and the reading of prompts beside it.

    read      what a sequence lacks            a prompt is a sequence that is far behind: chunk by chunk it catches up
    draft     the drafters race ahead          x_1 .. x_γ after the last emitted token
    verify    ONE target pass over all         [last, x_1 .. x_γ] of every sequence, and the chunks that are read
    accept    the rule walks the target rows   keeps a prefix of the draft, adds one token of the target's own
    trim      the target's cache is cut back   to tokens[:-1]: the last emitted token is in no cache

Token ids only: text, files and devices are other layers' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence as Many
from dataclasses import replace
from functools import partial

from spec_local.drafting.draft import Draft, no_draft
from spec_local.drafting.drafter import Drafter, DraftRequest, Offer, always
from spec_local.drafting.token_cache import TokenCache, common_prefix, worth_sharing
from spec_local.errors import BackendError, CacheError, SpecLocalError
from spec_local.language_model import Chunk, LanguageModel, Logits, StatesModel
from spec_local.sampling.logprobs import token_logprob
from spec_local.sampling.row import Row
from spec_local.speculation.controller import Controller, Plan, Seat
from spec_local.speculation.drafters import Drafters
from spec_local.speculation.pacing import Pacing
from spec_local.speculation.round import Round
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.turn import Turn

_MOST_READ_AGAIN = 8
"""Tokens at most that a sequence may lack besides its last one and still take part in the round: they ride in its pass.
One that lacks more is behind."""
_READ_TOGETHER = 32
"""Rows at most that each of several sequences brings into the first step of their drafts; more are read before."""
Guess = Callable[[Many[int], int], Many[int]]
"""See `DraftRequest.guess`."""


class Speculator:
    """Plays rounds over one target and the drafters that propose to it.

    Args:
        target: The model whose distribution the text follows.
        drafters: By source, in the order in which they are asked; the controller chooses. Empty: plain decoding.
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
        self._drafters = Drafters(drafters)
        self.controller = controller
        self.max_rows = min(max_rows, target.n_batch)
        self._clock = clock
        self._cache = TokenCache(target)
        self._pacing = Pacing()

    @property
    def drafters(self) -> dict[str, Drafter]:
        """The drafters in use, by source; may be exchanged between two steps."""
        return self._drafters

    @drafters.setter
    def drafters(self, drafters: Mapping[str, Drafter]) -> None:
        off = self._drafters.off
        self._drafters = Drafters(drafters)
        self._drafters.off = off

    @property
    def off(self) -> dict[str, str]:
        """Drafters that had to be given up, with the reason."""
        return self._drafters.off

    # -- slots -----------------------------------------------------------------------------------------------------

    def shared(self, slot: int, tokens: Many[int]) -> int:
        """Tokens at the start of `tokens` that the target's cache of `slot` holds."""
        return self._cache.shared(slot, tokens)

    def held(self, slot: int) -> int:
        """Tokens that the target's cache of `slot` holds."""
        return len(self._cache.tokens(slot))

    def release(self, slot: int) -> None:
        """Forget everything about a slot."""
        self._drafters.forget(slot, 0)
        self._cut(slot, 0)

    # -- the step --------------------------------------------------------------------------------------------------

    def step(self, sequences: Many[Sequence]) -> list[Round]:
        """One step for every unfinished sequence of `sequences`: a round for those that are up with their tokens, a
        chunk of what they lack for those that are behind, all in one target pass.

        A failure that concerns one sequence only ends that one (`finish` "error"); a failing drafter is given up and
        the round is plain decoding.

        Returns:
            The records of the rounds that were played; each was appended to its sequence too.

        Raises:
            Aborted: The pass was stopped on request; nothing was emitted and the caches are consistent.
            BackendError: The target pass failed; nothing was emitted and the caches are consistent.
        """
        active = [sequence for sequence in sequences if sequence.finish is None]
        if not active:
            return []
        started = self._clock()

        # Read. Who lacks more than a few tokens is behind, and plays no round before it has caught up.
        share = self.max_rows // len(active)
        lags = {id(s): self._lag(s, share) for s in active}
        room = self._pacing.room() if any(s.live and lags[id(s)] for s in active) else self.target.n_batch
        behind = [s for s in active if not lags[id(s)]]
        reading, drafters_read, drafters_s = self._read(behind, room) if behind else ([], 0, 0.0)
        for s in behind:
            lags[id(s)] = self._lag(s, share)
        ready = [s for s in active if lags[id(s)]]
        reading = [(s, chunk) for s, chunk in reading if not lags[id(s)]]

        # Draft. Ready drafts cost nothing, so they are made first and offered; a model runs only where it was chosen.
        before_draft = self._clock()
        turns = self._draft(ready, [lags[id(s)] for s in ready], room)
        draft_s = self._clock() - before_draft

        # Verify. One pass over all.
        chunks = [turn.chunk for turn in turns]
        for turn in turns:
            if turn.draft.tokens:
                self._cache.mark(turn.sequence.slot, len(turn.draft))
        rows = sum(len(chunk.tokens) for chunk in chunks)
        reading = _at_most(reading, min(room - drafters_read, self.target.n_batch - rows))
        chunks += [chunk for _, chunk in reading]
        if states := self._wants_states():
            chunks = [replace(chunk, states=True) for chunk in chunks]
        starts = [len(self._cache.tokens(chunk.seq)) for chunk in chunks]
        before_verify = self._clock()
        logits = self._cache.decode(chunks) if chunks else []
        verify_s = self._clock() - before_verify

        # Accept, token by token up to an end; then trim what the stream did not take.
        counts = [self._accept(turn.sequence, turn.draft, rows) for turn, rows in zip(turns, logits, strict=False)]
        for turn in turns:
            self._trim(turn.sequence)
        self._tell([*(turn.sequence for turn in turns), *(s for s, _ in reading)], chunks, starts, states)

        # Book. What reading took is no part of the rounds in the same pass.
        step_s = self._clock() - started
        read = sum(len(chunk.tokens) for _, chunk in reading)
        reading_s = max(drafters_s, self._pacing.observe(rows, read + drafters_read, step_s))
        for s, chunk in reading:
            s.reading.seconds += (reading_s - drafters_s) * len(chunk.tokens) / read
            s.reading.computed += 0 if s.reading.done else len(chunk.tokens)
        verify_s = max(0.0, verify_s - (reading_s - drafters_s))
        host_s = max(0.0, step_s - reading_s - draft_s - verify_s)
        outcomes = [
            turn.record(count, (draft_s, verify_s, host_s), len(turns))
            for turn, count in zip(turns, counts, strict=True)
        ]
        if outcomes:
            self.controller.observe(outcomes)
        return [outcome.round for outcome in outcomes]

    # -- reading ---------------------------------------------------------------------------------------------------

    def _lag(self, s: Sequence, share: int) -> int:
        """Rows that the coming pass must compute before a draft for `s`: its last token's, in most rounds; 0 if it
        is too far behind for a round.

        Where the target's memory could only be cut to a mark, the tokens accepted after it are computed again with the
        round's own: a pass for them alone would cost as much as the round.
        """
        if not s.reading.done:
            return 0
        held = len(self._cache.tokens(s.slot))
        lag = len(s.tokens) - held
        if self._cache.holds(s.slot, held) and (
            lag == 1 or (1 < lag <= min(_MOST_READ_AGAIN, share) and self._cache.shared(s.slot, s.tokens) == held)
        ):
            return lag
        return 0

    def _read(self, behind: Many[Sequence], room: int) -> tuple[list[tuple[Sequence, Chunk]], int, float]:
        """Bring the sequences that are behind nearer to their tokens.

        Returns:
            The chunks that the target is to compute, first come first; the tokens that drafters computed, and the
            seconds that took.
        """
        reading: list[tuple[Sequence, Chunk]] = []
        read, started = 0, self._clock()
        for s in behind:
            wanted = s.tokens[:-1]
            if not s.reading.begun:
                self._drafters.forget(s.slot, self._cache.shared(s.slot, wanted))
                s.reading.begun = True
            chunk = self._behind(s.slot, wanted, self.target.n_batch)
            held = self.held(s.slot)
            if not s.reading.computed:
                s.reading.lacking = len(wanted) - held
            if chunk is not None:
                alike = max((common_prefix(wanted, other.tokens) for other, _ in reading), default=0)
                if not worth_sharing(alike - held):  # else it begins like another one, and will take that over
                    reading.append((s, chunk))
            elif not s.reading.done and room > read:
                before = self._clock()
                read += self._open(s, room - read)
                s.reading.seconds += self._clock() - before
        return reading, read, self._clock() - started

    def _open(self, s: Sequence, most: int) -> int:
        """The target has read the prompt: have the drafter read it that the controller wants at hand. That is no part
        of decoding.

        Returns:
            Tokens computed; 0: the sequence can begin.
        """
        if s.reading.source is None:
            self._cache.mark(s.slot)  # what another answer, or the next turn, may come back to
            if not self._drafters.any_draws:
                s.reading.done = True
                return 0
            (offers,) = self._offers([s], [1])
            seat = Seat(self._state(s), offers, len(s.tokens) - 1, s.remaining)
            s.reading.source = self.controller.opens(seat, s.reading.computed)
        read = self._drafters.read(s.reading.source, s.slot, s.tokens[:-1], most)
        s.reading.done = not read
        return read

    def _behind(self, slot: int, wanted: list[int], most: int) -> Chunk | None:
        """`TokenCache.behind`; what cannot be cut back is computed from the start, and nothing is drafted any more."""
        try:
            return self._cache.behind(slot, wanted, most)
        except CacheError as error:
            self._cannot_cut(slot, error)
            return self._cache.behind(slot, wanted, most)

    # -- drafting --------------------------------------------------------------------------------------------------

    def _offers(self, ready: Many[Sequence], lags: Many[int]) -> list[dict[str, Offer]]:
        """What every drafter could give every sequence, by source."""
        share = self.max_rows // max(1, len(ready))
        offers: list[dict[str, Offer]] = [{} for _ in ready]
        for s, lag, found in zip(ready, lags, offers, strict=True):
            room = min(s.remaining - 1, share - lag) if s.speculate and self._drafters else 0
            if room > 0:
                found |= self._drafters.offers(self._request(s, room))
        return offers

    def _draft(self, ready: Many[Sequence], lags: Many[int], room: int) -> list[Turn]:
        """Plan the round and make its drafts."""
        if not ready:
            return []
        offers = self._offers(ready, lags)
        seats = [
            Seat(self._state(s), found, len(s.tokens) - 1, s.remaining) for s, found in zip(ready, offers, strict=True)
        ]
        turns = []
        for s, lag, plan in zip(ready, lags, self.controller.plan(seats), strict=True):
            offer = plan.seat.offers.get(plan.source)
            draft = offer.draft.cut(plan.limit) if offer and offer.draft else no_draft()
            turns.append(Turn(s, lag, plan, draft))
        drawn = [turn for turn in turns if turn.plan.limit > 0 and not turn.draft]
        for source in {turn.plan.source for turn in drawn}:
            self._draw(source, [turn for turn in drawn if turn.plan.source == source], room)
        for turn in turns:
            draft = turn.draft
            turn.drafted = len(draft)
            if draft.tokens and (turn.sequence.rule.tolerates_truncation or draft.rows is None):
                turn.draft = draft.cut(self.controller.shorten(turn.plan, draft))
        return turns

    def _draw(self, source: str, turns: list[Turn], room: int) -> None:
        """Have one drafter draw the drafts that were planned, all sequences together.

        Who lacks more than its share of the first step reads first; if that is more than this step may read, the round
        is played without a draft.
        """
        together = room if len(turns) == 1 else min(room, _READ_TOGETHER)
        passes: list[list[int]] = []
        able = []
        for turn in turns:
            lag = turn.plan.seat.offers[source].lag
            s = turn.sequence
            read = self._drafters.read(source, s.slot, s.tokens[:-1], room) if lag > together else 0
            if lag - read <= together:
                able.append(turn)
                passes.append([read] if read else [])
            else:
                turn.draft = Draft([], None, source, [], [read])
        requests = [
            self._request(
                turn.sequence, turn.plan.limit, partial(self.controller.more, turn.plan), self._guess(turn.plan)
            )
            for turn in able
        ]
        drafts = self._drafters.draft(source, requests)
        for turn, draft, before in zip(able, drafts, passes, strict=True):
            draft.passes[:0] = before
            turn.draft = draft

    def _request(
        self,
        s: Sequence,
        limit: int,
        more: Callable[[list[float]], bool] = always,
        guess: Guess | None = None,
    ) -> DraftRequest:
        noise = s.noise.for_round(len(s.tokens))
        return DraftRequest(s.slot, s.tokens, limit, s.draft_transform, noise, s.rule, more, s.walk, guess)

    def _guess(self, plan: Plan) -> Guess | None:
        """What a ready draft expects after a drawn one, for the model to read along; None where nobody has one."""
        ahead = next((offer.ahead for offer in plan.seat.offers.values() if offer.ahead is not None), None)
        if ahead is None:
            return None

        def guess(drafted: Many[int], rows: int) -> Many[int]:
            expected = ahead(drafted, plan.limit)
            return expected.tokens[: self.controller.guess(plan, expected, rows)]

        return guess

    def _state(self, s: Sequence) -> object:
        """What the controller remembers of `s`."""
        if s.decided_by is not self.controller:
            s.decided_by, s.state = self.controller, self.controller.enter()
        return s.state

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
            return self._cannot_cut(slot, error)

    def _cannot_cut(self, slot: int, error: CacheError) -> int:
        """Nothing can be drafted over a cache that cannot be cut back, and what it holds is not to be believed."""
        for source in list(self._drafters):
            self._drafters.give_up(source, f"the target's cache cannot be cut back: {error.message}")
        return self._cache.cut(slot, 0)

    def _wants_states(self) -> bool:
        """Whether a drafter wants hidden states that the target can give; who cannot have them is given up."""
        wanting = self._drafters.wanting_states
        if not wanting:
            return False
        if isinstance(self.target, StatesModel) and self.target.state_width:
            return True
        for source in wanting:
            self._drafters.give_up(source, "the target gives no hidden states")
        return False

    def _tell(self, computed: Many[Sequence], chunks: Many[Chunk], starts: Many[int], states: bool) -> None:
        """Tell all drafters what the pass computed and the texts kept."""
        if not self.drafters or not chunks:
            return
        rows = self.target.states() if states and isinstance(self.target, StatesModel) else [None] * len(chunks)
        for s, chunk, start, row in zip(computed, chunks, starts, rows, strict=True):
            kept = max(0, min(len(chunk.tokens), len(s.tokens) - 1 - start))
            self._drafters.seen(s.slot, s.tokens, start, start + kept, None if row is None else row[:kept])


def _at_most(reading: list[tuple[Sequence, Chunk]], room: int) -> list[tuple[Sequence, Chunk]]:
    """The chunks cut to `room` tokens in all, first come first."""
    kept = []
    for s, chunk in reading:
        if room > 0:
            kept.append((s, replace(chunk, tokens=chunk.tokens[:room])))
            room -= len(chunk.tokens)
    return kept
