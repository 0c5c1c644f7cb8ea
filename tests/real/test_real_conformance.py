"""The promise on real models: padded to one width, every arm gives plain decoding's tokens."""

from __future__ import annotations

import conformance
import pytest
from real_models import DRAFT, SMALL, TARGET, Load

from spec_local.sampling import Sampling

pytestmark = pytest.mark.models
EVERY_ARM = (("model", 1), ("model", 4), ("model", 7), ("text", 7), ("always wrong", 7), ("wrong in turn", 7))


def _differences(arms: list[conformance.Arm]) -> list[str]:
    assert arms
    return [arm.line() for arm in arms if not arm.identical]


def test_small_model_with_itself(engines: Load) -> None:
    engine = engines(SMALL, SMALL, draft_length=7, pad_width=8)
    arms = list(conformance.run(engine, conformance.PROMPTS, conformance.settings(1, 24), EVERY_ARM))
    assert _differences(arms) == []
    by_drafter = {arm.drafter: arm for arm in arms}
    assert by_drafter["model"].acceptance_rate == 1.0
    assert by_drafter["always wrong"].acceptance_rate == 0.0


def test_penalties_bias_and_minimum_lengths(engines: Load) -> None:
    engine = engines(SMALL, SMALL, draft_length=7, pad_width=8)
    end = engine.vocabulary.eos
    settings = [
        Sampling(temperature=0.9, seed=3, max_tokens=32, repeat_penalty=1.3, penalty_last_n=-1, min_tokens=20),
        Sampling(temperature=0.9, seed=3, max_tokens=32, frequency_penalty=0.5, logit_bias={end: 8.0, 28: -100.0}),
        Sampling(temperature=1.2, seed=3, max_tokens=32, typical_p=0.8, top_k=0, top_p=1.0, min_p=0.0),
    ]
    arms = list(conformance.run(engine, conformance.PROMPTS[:1], settings, (("model", 7), ("wrong in turn", 7))))
    assert _differences(arms) == []


def test_the_default_pair(engines: Load) -> None:
    engine = engines(TARGET, DRAFT, draft_length=3, pad_width=4, n_ctx=512)
    arms = (("model", 3), ("text", 3), ("always wrong", 3), ("wrong in turn", 3))
    found = list(conformance.run(engine, conformance.PROMPTS[:1], conformance.settings(1, 24), arms))
    assert _differences(found) == []
    assert max(arm.tokens_per_pass for arm in found if arm.drafter == "model") > 1.5
