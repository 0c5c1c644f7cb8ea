from __future__ import annotations

import pytest

from spec_local.drafting.drafter import DraftRequest
from spec_local.sampling import RULES, Noise, Sampling, Transform
from spec_local.verify.adversary import always_wrong, right_then_wrong

ANSWER = [5, 1, 4, 4, 2, 0, 3, 3, 1]


def request(tokens: list[int], limit: int) -> DraftRequest:
    transform = Transform(Sampling(), 7, frozenset(), 1)
    return DraftRequest(0, tokens, limit, transform, Noise(0), RULES["coupled"], lambda _: True)


def test_a_wrong_draft_has_no_right_token() -> None:
    drafter = always_wrong(ANSWER, 7)
    for length in range(1, 9):
        draft = drafter.draft([request(ANSWER[:length], 4)])[0]
        assert draft.rows is None
        assert len(draft) == 4
        for token, answer in zip(draft.tokens, ANSWER[length:], strict=False):
            assert 0 <= token < 7
            assert token != answer


@pytest.mark.parametrize("longest", [1, 3])
def test_a_teasing_draft_goes_wrong_at_every_place_in_turn(longest: int) -> None:
    drafter = right_then_wrong(ANSWER, 7, longest)
    places = []
    for _ in range(2 * (longest + 1)):
        draft = drafter.draft([request(ANSWER[:2], longest)])[0]
        pairs = zip(draft.tokens, ANSWER[2:], strict=False)
        places.append(next((i for i, (token, answer) in enumerate(pairs) if token != answer), longest))
    assert places == 2 * list(range(longest + 1))
