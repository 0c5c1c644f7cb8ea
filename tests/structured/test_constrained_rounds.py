"""Grammars under speculation, on toys: the text of plain decoding, whatever drafts, never against the grammar."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from toy_drafters import junk, scripted
from toy_grammar import LIST, START, ToyGrammar, is_list
from toy_model import Table
from toy_runs import (
    GREEDY,
    PROMPT,
    VOCABULARY,
    WARM,
    make_sequence,
    model_drafter,
    play,
    read,
    speculator,
    text_drafter,
)

from spec_local.drafting.drafter import Drafter
from spec_local.drafting.grammar import GrammarDrafter
from spec_local.errors import BackendError, NoTokenError
from spec_local.sampling.constraint import Walk
from spec_local.speculation.controller import FixedController
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator


def constrained(settings: Any, *, grammar: ToyGrammar | None = None, **options: Any) -> Sequence:
    sequence = make_sequence(settings, ends=(0,), **options)
    sequence.constraint = grammar or ToyGrammar(LIST, VOCABULARY)
    sequence.walk = Walk(sequence.constraint)
    return sequence


def run(drafters: dict[str, Drafter], settings: Any, length: int = 5, **options: Any) -> Sequence:
    sequence = constrained(settings, **options)
    play(speculator(with_grammar(drafters), length), sequence)
    return sequence


def with_grammar(drafters: dict[str, Drafter]) -> dict[str, Drafter]:
    """As an engine sets them up: what the grammar makes certain is asked first, if anything is drafted at all."""
    return {"grammar": GrammarDrafter(), **drafters} if drafters else {}


def sources(kind: str, seed: int) -> dict[str, Drafter]:
    other = Table(VOCABULARY, seed=seed + 50, scale=2.0)
    known: dict[str, dict[str, Drafter]] = {
        "same": model_drafter(),
        "other": model_drafter(other),
        "text": text_drafter(),
        "junk": {"text": junk(VOCABULARY, seed)},
        "all": text_drafter() | model_drafter(),
    }
    return known[kind]


@pytest.mark.parametrize("kind", ["same", "other", "text", "junk", "all"])
@pytest.mark.parametrize("settings", [GREEDY, WARM, {**WARM, "top_k": 2, "repeat_penalty": 1.5}])
def test_the_text_is_that_of_plain_decoding(kind: str, settings: dict[str, Any]) -> None:
    for seed in range(12):
        plain = run({}, settings, 0, seed=seed)
        fast = run(sources(kind, seed), settings, seed=seed)
        assert fast.tokens == plain.tokens
        assert (fast.finish, fast.limit) == (plain.finish, plain.limit)
        assert is_list([t for t in fast.emitted if t != 0], complete=fast.finish == "stop")
        if fast.finish == "stop":
            assert fast.emitted[-1] == 0, "nothing behind the end"


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_the_state_moves_with_emitted_tokens_only(rule: str) -> None:
    for seed in range(8):
        sequence = run(sources("all", seed), WARM, seed=seed, rule=rule)
        grammar = sequence.constraint
        assert isinstance(grammar, ToyGrammar)
        assert grammar.taken == [token for token in sequence.emitted if token != 0]


def test_certain_tokens_are_free_drafts() -> None:
    """Openings and separators cost neither a pass of their own nor a step of the draft model."""
    drafters = model_drafter()
    sequence = run(drafters, WARM, seed=0)
    spelt = [r for r in sequence.rounds if r.source == "grammar"]
    assert spelt
    assert all(r.accepted == r.tested == r.drafted for r in spelt)
    assert sequence.rounds[0].source == "grammar"
    assert sequence.rounds[0].emitted >= 3, "1 2 3 are certain"
    plain = run({}, WARM, 0, seed=0)
    assert all(r.source == "none" for r in plain.rounds), "no draft means plain decoding, here too"
    assert len(sequence.rounds) < len(plain.rounds) / 2


def test_a_model_draft_goes_on_behind_what_is_certain() -> None:
    drafters = model_drafter()
    sequence = run(drafters, GREEDY, 8, max_tokens=30)
    model = [r for r in sequence.rounds if r.source == "model"]
    assert model
    steps = len(drafters["model"].model.calls)  # type: ignore[attr-defined]
    assert sum(r.drafted for r in model) > 1.5 * steps, "a comma brings its space and its sign with it"


@pytest.mark.parametrize("at", range(6))
def test_the_grammar_may_end_anywhere_inside_a_block(at: int) -> None:
    """A draft that is right up to the end, then runs on: the answer stops at the end, state and caches with it."""
    text = [1, 2, 3, 4, 8, 10, 11, 5, 9, 0]
    prefers = Table(VOCABULARY, seed=4, scale=0.1)

    def logits(tokens: Any) -> Any:
        row = prefers(tokens).copy()
        done = len(tokens) - len(PROMPT)
        row[text[done] if done < len(text) else 13] += 50.0
        return row

    from toy_model import ToyModel

    # The draft begins `at` tokens before the end token and runs on behind it, with tokens the grammar never admits.
    begin = len(text) - 1 - at
    drafts = {begin: [*text[begin:], 13, 14, 15]}
    drafter = scripted([])
    drafter._propose = lambda tokens, limit: drafts.get(len(tokens) - len(PROMPT), [])
    target = ToyModel(logits, VOCABULARY)
    sequence = constrained(GREEDY)
    play(Speculator(target, {"text": drafter}, FixedController(("text",), 8)), sequence)
    assert sequence.emitted == text
    assert sequence.finish == "stop"
    assert target.caches[0] == sequence.tokens[:-1]
    assert all(r.accepted <= r.tested <= r.drafted for r in sequence.rounds)


def test_a_draft_against_the_grammar_is_cut_before_the_pass() -> None:
    target = None
    sequence = constrained(GREEDY)
    spec = speculator({"text": scripted([[13] * 5] * 50)}, 5, target=target)
    play(spec, sequence)
    assert all(r.source != "text" for r in sequence.rounds)
    assert all(chunk.tokens.count(13) == 0 for call in spec.target.calls[1:] for chunk in call)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["none", "same", "all"])
def test_a_grammar_that_gives_up_fails_its_own_sequence_only(kind: str) -> None:
    failing = ToyGrammar(LIST, VOCABULARY)
    failing.fails_in = "comma"
    # A list of one token kind, so that "comma" is reached for sure.
    drafters = {} if kind == "none" else sources(kind, 3)
    bad = constrained({**GREEDY, "logit_bias": {9: -100.0}}, grammar=failing)
    good = constrained(WARM, slot=1, seed=2)
    spec = speculator(with_grammar(drafters), 5)
    for sequence in (bad, good):
        read(spec, sequence)
    while bad.finish is None or good.finish is None:
        spec.step((bad, good))
    assert isinstance(bad.error, BackendError)
    assert "gave up" in bad.error.message
    assert good.finish in ("stop", "length")
    assert good.tokens == run({}, WARM, 0, seed=2).tokens
    assert set(spec.drafters) == set(with_grammar(drafters)), "no drafter is given up for it"


def test_a_smaller_draft_vocabulary_stops_where_it_knows_no_token() -> None:
    small = Table(8, seed=9)  # knows neither comma, space nor closing bracket
    plain = run({}, WARM, 0, seed=5, prompt=(3, 1, 4))
    fast = constrained(WARM, seed=5, prompt=(3, 1, 4))
    spec = speculator(with_grammar(model_drafter(small)), 5)
    play(spec, fast)
    assert fast.tokens == plain.tokens
    assert set(spec.drafters) == {"grammar", "model"}, "that is no failure of the drafter"


def test_a_finished_grammar_ends_the_answer_whatever_min_tokens_says() -> None:
    sequence = run({}, {**GREEDY, "min_tokens": 30, "logit_bias": {8: -100.0}}, 0)
    assert (sequence.finish, sequence.error) == ("stop", None)
    assert len(sequence.emitted) < 30


def test_bans_of_all_that_the_grammar_admits_are_an_error_of_the_request_that_names_them() -> None:
    sequence = run({}, {**GREEDY, "logit_bias": dict.fromkeys(range(VOCABULARY), -100.0)}, 0)
    assert isinstance(sequence.error, NoTokenError)
    assert "grammar" in str(sequence.error)
    assert "bans" in str(sequence.error)


SHORT = {START: {1: "a"}, "a": {4: "b", 5: "b", 6: "b"}, "b": {8: "c", 9: "end"}, "c": {4: "end", 5: "end"}}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_the_law_is_that_of_masked_rows(rule: str) -> None:
    """The nine texts of a small grammar, their exact probabilities, and how often each rule draws them."""
    grammar = ToyGrammar(SHORT, VOCABULARY)
    exact: dict[tuple[int, ...], float] = {}
    probe = constrained(WARM)
    from toy_runs import TARGET

    for text in [(1, x, 9) for x in (4, 5, 6)] + [(1, x, 8, y) for x, y in product((4, 5, 6), (4, 5))]:
        state, tokens, p = grammar.fork(), list(PROMPT), 1.0
        for token in text:
            row = probe.transform.row(TARGET(tokens), tokens, len(tokens), state.allowed())
            p *= row.prob(token)
            state.advance(token)
            tokens.append(token)
        exact[text] = p
    assert sum(exact.values()) == pytest.approx(1.0)

    count = 2500
    drafters = model_drafter()
    spec = speculator(with_grammar(drafters), 3)
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(count):
        sequence = constrained(WARM, grammar=grammar.fork(), seed=seed, rule=rule)
        play(spec, sequence)
        seen[tuple(sequence.emitted[:-1])] += 1
    assert set(seen) <= set(exact)
    from scipy.stats import chisquare

    expected = np.array([exact[text] * count for text in exact])
    big = expected >= 5
    observed = np.array([seen[text] for text in exact], float)
    pooled = [*observed[big], observed[~big].sum()], [*expected[big], expected[~big].sum()]
    keep = [i for i, e in enumerate(pooled[1]) if e > 0]
    result = chisquare([pooled[0][i] for i in keep], [pooled[1][i] for i in keep])
    assert result.pvalue > 1e-4, dict(seen)


def test_walk_asks_for_each_mask_once_and_goes_back_where_a_path_turns() -> None:
    asked: list[tuple[int, ...]] = []

    class Counted(ToyGrammar):
        path: tuple[int, ...] = ()

        def allowed(self) -> Any:
            asked.append(self.path)
            return super().allowed()

        def fork(self) -> ToyGrammar:
            copy = Counted(self.edges, self.n_vocab, self.ends, self.state)
            copy.path = self.path
            return copy

        def advance(self, token: int) -> bool:
            self.path = (*self.path, token)
            return super().advance(token)

    start = Counted(LIST, VOCABULARY)
    walk = Walk(start)
    for path in ([], [1], [1, 2], [1], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 5, 9], []):
        mask = walk.allowed(path)
        reference = start.fork()
        for token in path:
            reference.advance(token)
        assert mask is not None
        assert (mask == ToyGrammar.allowed(reference)).all()
    assert len(asked) == len(set(asked)) == 7
    assert walk.allowed([1, 7]) is None
    assert walk.allowed([1, 7, 3]) is None
    again = walk.allowed([1])
    assert again is not None
    assert again[2]
    assert start.taken == []
    assert walk.legal([1, 2, 13]) == 2
    assert walk.forced([1], 9) == [2, 3]
    assert walk.forced([1], 1) == [2]
    assert walk.forced([1, 7], 3) == []
