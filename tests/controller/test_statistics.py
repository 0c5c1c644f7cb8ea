"""Figures from rounds: the definitions, and None where there is nothing to report."""

from __future__ import annotations

import json

import pytest

from spec_local.speculation.round import Round
from spec_local.speculation.statistics import summarise


def _round(source: str, drafted: int, tested: int, accepted: int, verify_s: float = 0.1, **more: float) -> Round:
    return Round(
        source=source,
        width=1 + tested,
        drafted=drafted,
        tested=tested,
        accepted=accepted,
        emitted=accepted + 1,
        draft_s=more.get("draft_s", 0.0),
        verify_s=verify_s,
        host_s=0.0,
        reason="",
        sequences=int(more.get("sequences", 1)),
        plain_s=more.get("plain_s"),
    )


def test_drafts_that_were_thrown_away_are_counted_apart() -> None:
    """Draft lengths 4, 4, 1 where a draft below 2 is not submitted; 4, 0 and no token accepted."""
    s = summarise([_round("model", 4, 4, 4), _round("model", 4, 4, 0), _round("model", 1, 0, 0)])
    assert (s.drafted, s.tested, s.accepted, s.skipped) == (9, 8, 4, 1)
    assert s.acceptance_rate == 0.5
    assert s.tokens_per_pass == pytest.approx(7 / 3)
    assert s.per_position == (0.5, 0.5, 0.5, 0.5)


def test_always_wrong_and_always_right() -> None:
    assert summarise([_round("text", 3, 3, 0)] * 5).acceptance_rate == 0.0
    assert summarise([_round("model", 3, 3, 3)] * 5).acceptance_rate == 1.0


def test_without_drafts_rates_are_absent() -> None:
    s = summarise([_round("none", 0, 0, 0)] * 3)
    assert s.acceptance_rate is None
    assert s.per_position == ()
    assert s.sources == {}
    assert s.tokens_per_pass == 1.0
    assert s.speedup_estimate == pytest.approx(1.0)
    assert "acceptance_rate" not in s.as_dict()
    assert "per_position" not in s.as_dict()


def test_nothing_at_all() -> None:
    s = summarise([])
    assert (s.rounds, s.emitted, s.decode_s) == (0, 0, 0)
    assert s.tokens_per_pass is s.tokens_per_s is s.plain_tokens_per_s_estimate is s.speedup_estimate is None


def test_position_rates_count_only_rounds_that_tested_the_position() -> None:
    s = summarise([_round("model", 3, 3, 1), _round("model", 1, 1, 1), _round("none", 0, 0, 0)])
    assert s.per_position == (1.0, 0.0, 0.0)


def test_sources_apart_add_up_to_the_total() -> None:
    rounds = [_round("model", 4, 4, 2), _round("text", 6, 5, 5), _round("none", 0, 0, 0), _round("text", 2, 2, 0)]
    s = summarise(rounds)
    assert set(s.sources) == {"model", "text"}
    assert s.sources["text"].per_position[:2] == (0.5, 0.5)
    for name in ("drafted", "tested", "accepted", "skipped"):
        assert getattr(s, name) == sum(getattr(part, name) for part in s.sources.values())


def test_times_and_speed_against_plain_decoding() -> None:
    """4 tokens in 0.3 s drafted, 1 in 0.1 s plain, where a plain round takes 0.1 s."""
    s = summarise([_round("model", 3, 3, 3, 0.2, draft_s=0.1, plain_s=0.1), _round("none", 0, 0, 0, 0.1)])
    assert s.decode_s == pytest.approx(0.4)
    assert s.tokens_per_s == pytest.approx(5 / 0.4)
    assert s.plain_tokens_per_s_estimate == pytest.approx(10.0)
    assert s.speedup_estimate == pytest.approx(1.25)


def test_a_draft_that_costs_more_than_it_brings_is_a_slowdown() -> None:
    s = summarise([_round("model", 2, 2, 0, 0.15, draft_s=0.05, plain_s=0.1)])
    assert s.speedup_estimate == pytest.approx(0.5)


def test_unknown_plain_cost_gives_no_estimate() -> None:
    s = summarise([_round("model", 3, 3, 3)])
    assert s.plain_tokens_per_s_estimate is None
    assert s.speedup_estimate is None
    assert s.tokens_per_s == pytest.approx(40.0)


def test_sequences_that_share_rounds_share_machine_time() -> None:
    together = [_round("none", 0, 0, 0, 0.1, sequences=4) for _ in range(4)]
    s = summarise(together)
    assert s.machine_s == pytest.approx(0.1)
    assert s.tokens_per_s == pytest.approx(10.0)
    assert s.throughput_tokens_per_s == pytest.approx(40.0)


def test_figures_are_plain_json() -> None:
    s = summarise([_round("model", 4, 4, 2, plain_s=0.08), _round("text", 3, 3, 3, plain_s=0.08)])
    assert json.loads(json.dumps(s.as_dict())) == s.as_dict()
