"""The soak, for as long as a test may take: every kind of tiny model, faults, and the invariants after every step."""

from __future__ import annotations

import pytest
from soak import soak
from soaking.ledger import INVARIANTS, Ledger


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders


@pytest.mark.slow
def test_a_soak_of_seconds_violates_nothing() -> None:
    ledger = soak(minutes=1 / 3, seed=1, steps=20)
    summary = ledger.as_dict()
    assert summary["violations"] == []
    assert summary["steps"] > 20
    assert summary["invariant_checks"] > summary["steps"]
    assert summary["tokens"] > 0


def test_a_violation_is_counted_and_named() -> None:
    ledger = Ledger()
    ledger.check(4, True, "fine")
    ledger.check(4, False, "tokens behind an end token")
    found = ledger.as_dict()
    assert found["checks_by_invariant"]["4"] == 2
    assert found["violations"] == [f"4 ({INVARIANTS[4]}): tokens behind an end token"]


def test_growth_is_that_of_the_last_quarter_over_an_early_one() -> None:
    ledger = Ledger(memory=[900, 100, 100, 100, 100, 100, 100, 100, 130, 130, 130, 130], handles=[5] * 12)
    assert ledger.growth() == (30, 0)
    assert Ledger(memory=[1, 2], handles=[1, 2]).growth() == (0, 0)
