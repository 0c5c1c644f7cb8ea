"""`verify` on a tiny real pair: it passes, and every injected fault makes it fail and is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import MERGES, write_recurrent, write_transformer

from spec_local.cli.main import main
from spec_local.drafting.model import _Stream
from spec_local.drafting.token_cache import TokenCache, common_prefix
from spec_local.errors import Aborted
from spec_local.language_model import Chunk
from spec_local.llama.context import Context
from spec_local.llama.padded import FilledContext, PaddedContext
from spec_local.sampling import Purpose, Sampling, acceptance
from spec_local.session.engine import load
from spec_local.session.options import EngineOptions
from spec_local.speculation.controller import FixedController
from spec_local.speculation.speculator import Speculator
from spec_local.verify.conformance import Setting
from spec_local.verify.findings import Kind, culprit
from spec_local.verify.report import table
from spec_local.verify.verify import PROMPTS, LiveRun, Plan, Verification, make_plan, verify

OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=32, min_tokens=32, seed=5)
GREEDY = OPEN.model_copy(update={"temperature": 0.0, "max_tokens": 16, "min_tokens": 16})


def plan(rule: str) -> Plan:
    arms = (("model", 7), ("always wrong", 3), ("wrong in turn", 7))
    settings = [Setting("one, two, one, two, one", GREEDY, arms)]
    if rule == "coupled":
        sampled = OPEN.model_copy(update={"max_tokens": 16, "min_tokens": 16})
        settings.append(Setting("abcabcabcabc", sampled, (("model", 3), ("text", 7))))
    drafting = FixedController(("model", "text"), 4)
    live = (
        LiveRun("T 0", "some text", GREEDY, drafting),
        LiveRun("T 1", "other text", OPEN, drafting),
    )
    return Plan(tuple(settings), live, 2_000, 8)


@pytest.fixture
def check(tiny_target: Path, tiny_draft: Path) -> Callable[[str], Verification]:
    def run(rule: str) -> Verification:
        options = EngineOptions(acceptance=rule, threads=1, n_ctx=512, draft_length=4)
        with load(tiny_target, draft=tiny_draft, options=options) as engine:
            return verify(engine, plan=plan(rule))

    return run


@pytest.mark.parametrize("add_bos", [False, True])
def test_a_draft_of_another_vocabulary_passes(
    tiny_target: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, add_bos: bool
) -> None:
    """Its cache is replayed in its own ids, and holds the text."""
    with monkeypatch.context() as patch:
        patch.setattr("tiny_gguf.MERGES", ("z z", *MERGES[1:][::-1]))
        draft = write_transformer(tiny_folder / f"other-{add_bos}.gguf", seed=1, near=0.02, add_bos=add_bos)
    options = EngineOptions(threads=1, n_ctx=512, draft_length=4)
    with load(tiny_target, draft=draft, options=options) as engine:
        found = verify(engine, plan=plan("coupled"))
    assert not found.problems
    assert {finding.model for finding in found.cache.findings} == {"target", "draft"}


def kind(found: Verification) -> Kind | None:
    return culprit(list(found.problems))


def keep_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut to one token more than wanted, and believe it is right."""

    def cut(self: TokenCache, slot: int, length: int) -> int:
        if self.model.length(slot) > length:
            self.model.trim(slot, length + 1 if length else 0)
        del self._held.setdefault(slot, [])[length:]
        return len(self._held[slot])

    def decode(self: TokenCache, chunks: Any) -> Any:
        rows = self.model.decode(chunks)
        for chunk in chunks:
            self._held[chunk.seq].extend(chunk.tokens)
        return rows

    def shared(self: TokenCache, slot: int, tokens: Any, known: int = 0) -> int:
        return common_prefix(self.tokens(slot), tokens, known)

    monkeypatch.setattr(TokenCache, "cut", cut)
    monkeypatch.setattr(TokenCache, "decode", decode)
    monkeypatch.setattr(TokenCache, "shared", shared)
    monkeypatch.setattr(TokenCache, "holds", lambda self, slot, length: len(self.tokens(slot)) == length)


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_a_sound_program_passes(check: Callable[[str], Verification], rule: str) -> None:
    found = check(rule)
    assert found.problems == ()
    assert all(arm.difference is None for arm in found.conformance.arms)
    assert sum(arm.accepted for arm in found.conformance.arms if arm.drafter == "always wrong") == 0
    assert any(arm.accepted > 4 for arm in found.conformance.arms if arm.drafter == "model")
    assert found.audit.epsilon > 0
    assert {cache.model for cache in found.cache.findings} == {"target", "draft"}
    assert found.distribution.draft_row_distance is not None
    json.dumps(found.as_dict(), allow_nan=False)
    assert "PASSED" in table(found)


def test_a_trim_off_by_one_in_the_round(check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch) -> None:
    """One rejected token stays in the cache after each round, and nobody looks."""
    keep_one_too_many(monkeypatch)
    found = check("coupled")
    assert kind(found) is Kind.CACHE
    assert "1 token more than it must" in table(found)
    assert {problem.check for problem in found.problems} >= {"cache", "audit", "conformance"}


def test_a_trim_off_by_one_in_the_cache_that_keeps_its_length(
    check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token too many is cut, and another one stands in its place: no length shows it."""
    right = Context.trim

    def trim(self: Context, seq: int, length: int) -> None:
        before = self.length(seq)
        right(self, seq, length)
        if 1 < length < before:
            right(self, seq, length - 1)
            self.native.batch.clear()
            self.native.batch.add([0], length - 1, seq, 0)
            assert self.native.decode() == 0

    monkeypatch.setattr(Context, "trim", trim)
    found = check("coupled")
    assert kind(found) is Kind.CACHE
    assert "it holds other tokens than the text" in table(found)
    assert {problem.check for problem in found.problems} >= {"cache", "audit", "conformance"}


def test_a_residual_without_the_draft_subtracted(
    check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, q, weight: (p.ids, p.probs))
    for rule in ("rejection", "block"):
        found = check(rule)
        assert kind(found) is Kind.RESIDUAL


def test_shared_noise_in_a_ratio_test(check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch) -> None:
    def draft_token(self: Any, row: Any, noise: Any, position: int) -> int:
        return int(noise.choose(Purpose.RESIDUAL, position, row.ids, row.probs))

    monkeypatch.setattr(acceptance.Rejection, "draft_token", draft_token)
    found = check("rejection")
    assert kind(found) is Kind.NOISE
    assert "the residual noise of position" in table(found)


def test_an_arg_max_draft_tested_with_its_full_row(
    check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draft_token(self: Any, row: Any, noise: Any, position: int) -> int:
        return int(row.ids[np.argmax(row.probs)])

    for name, rule in (("rejection", acceptance.Rejection), ("block", acceptance.Block)):
        monkeypatch.setattr(rule, "draft_token", draft_token)
        assert kind(check(name)) is Kind.DRAFT


def test_a_wrong_acceptance_probability(check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "acceptance_probability", lambda p, q: min(1.0, 1.3 * p / q))
    assert kind(check("rejection")) is Kind.ACCEPTANCE


def test_a_draft_row_of_the_wrong_position(
    check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Speculator._draft

    def late(self: Speculator, ready: Any, lags: Any, room: int) -> Any:
        turns = right(self, ready, lags, room)
        for draft in (turn.draft for turn in turns):
            if draft.rows:
                draft.rows = [draft.rows[0], *draft.rows[:-1]]
        return turns

    monkeypatch.setattr(Speculator, "_draft", late)
    for rule in ("rejection", "block"):
        found = check(rule)
        assert kind(found) is Kind.DRAFT_ROW


def test_a_drafter_that_reads_the_row_before(
    check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is drawn from the row handed on, so only a fresh draft cache shows that it is another position's."""
    right = _Stream.draw
    last: dict[int, np.ndarray] = {}

    def draw(self: _Stream, logits: np.ndarray) -> None:
        now = logits.copy()
        right(self, last.get(self.request.slot, now))
        last[self.request.slot] = now

    monkeypatch.setattr(_Stream, "draw", draw)
    found = check("rejection")
    assert kind(found) is Kind.DRAFT_ROW


def test_a_target_row_of_the_wrong_position(
    check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row i+1 decides about token i: what is emitted is not what the target says."""
    for kind_of_context in (FilledContext, PaddedContext):

        def decode(self: Any, chunks: Any, right: Any = kind_of_context.decode) -> Any:
            return [np.roll(rows, -1, axis=0) if 1 < len(rows) < 8 else rows for rows in right(self, chunks)]

        monkeypatch.setattr(kind_of_context, "decode", decode)
    found = check("coupled")
    assert {Kind.TOKENS, Kind.DECISION} & {problem.kind for problem in found.problems}


def test_a_draft_that_is_never_compared(check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch) -> None:
    right = acceptance.Coupled.verify

    def verify_all(self: Any, tokens: Any, rows: Any, target_row: Any, noise: Any, position: int) -> Any:
        ruling = right(self, tokens, rows, target_row, noise, position)
        if len(tokens) and ruling.accepted == 0:
            return acceptance.Ruling((tokens[0], *ruling.tokens[1:]), 1)
        return ruling

    monkeypatch.setattr(acceptance.Coupled, "verify", verify_all)
    found = check("coupled")
    assert Kind.TOKENS in {problem.kind for problem in found.problems}
    assert "instead of" in table(found)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("pair", ["itself", "another", "text", "none"])
@pytest.mark.parametrize("rule", ["coupled", "block"])
def test_no_alarm_for_a_sound_program(tiny_target: Path, tiny_draft: Path, quick: bool, pair: str, rule: str) -> None:
    """Whatever the pair is worth: a draft that is the target, one that is hardly ever run, one that is never asked."""
    if pair in ("text", "none") and rule != "coupled":
        pytest.skip("covered by the coupled rule")
    draft = {"itself": tiny_target, "another": tiny_draft}.get(pair, pair)
    with load(tiny_target, draft=draft, options=EngineOptions(acceptance=rule, threads=1, n_ctx=512)) as engine:
        made = make_plan(engine, quick, Sampling())
        plan_ = replace(made, live=(*made.live, LiveRun("no drafts", PROMPTS["edit"], GREEDY, FixedController((), 0))))
        found = verify(engine, quick=quick, plan=plan_)
    assert found.problems == ()


@pytest.mark.parametrize("pair", ["itself", "another", "text"])
def test_quick_finds_a_trim_off_by_one_whatever_the_drafts_are_worth(
    tiny_target: Path, tiny_draft: Path, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = {"itself": tiny_target, "another": tiny_draft}.get(pair, pair)
    keep_one_too_many(monkeypatch)
    with load(tiny_target, draft=draft, options=EngineOptions(threads=1, n_ctx=512)) as engine:
        found = verify(engine, quick=True)
    assert kind(found) is Kind.CACHE
    assert "1 token more than it must" in table(found)


def test_a_wrong_token_in_a_draft_cache_that_lags_is_found(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the draft's cache lacks is read by the check; what it holds is not made right by that."""
    with load(tiny_target, draft=tiny_draft, options=EngineOptions(threads=1, n_ctx=512)) as engine:
        assert engine.loaded.draft is not None
        draft = engine.loaded.draft
        right = draft.decode

        def spoilt(chunks: Any) -> Any:
            spoil = [
                Chunk(c.seq, [*c.tokens[:-2], 5, *c.tokens[-1:]] if len(c.tokens) > 9 else c.tokens, c.rows)
                for c in chunks
            ]
            return right(spoil)

        monkeypatch.setattr(draft, "decode", spoilt)
        found = verify(engine, plan=plan("coupled"))
    assert kind(found) is Kind.CACHE
    assert "the draft's cache has the right length, but" in table(found)


def test_the_command_prints_json_and_says_1_when_something_is_wrong(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spec_local.verify.verify.make_plan", lambda *_: plan("coupled"))
    command = ["verify", "--json", "--quick", "-m", str(tiny_target), "-d", str(tiny_draft), "--threads", "1"]
    command += ["--draft-length", "4", "--n-ctx", "512"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    keep_one_too_many(monkeypatch)
    assert main(command) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["kind"]) == (False, "cache")
    assert found["problems"][0].keys() == {"check", "kind", "message"}


def test_a_target_with_a_running_state_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recurrent(tmp_path / "recurrent.gguf")
    assert main(["verify", "--quick", "-m", str(path), "-d", "text", "--threads", "1", "--n-ctx", "256"]) == 2
    assert "There is nothing to verify this way: recurrent.gguf keeps a running state" in capsys.readouterr().err


def test_what_was_noticed_while_loading_is_said(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> Verification:
        raise Aborted("Stopped.")

    monkeypatch.setattr("spec_local.verify.verify.verify", stopped)
    words = ["-m", str(tiny_target), "-d", str(tmp_path / "missing.gguf"), "--allow-plain", "--threads", "1"]
    assert main(["verify", "--quick", "--n-ctx", "256", *words]) == 130
    assert capsys.readouterr().err.count("note: Continuing without a draft model.") == 1


def test_an_adversary_and_the_text_itself_need_no_draft_model(tiny_target: Path) -> None:
    with load(tiny_target, draft="none", options=EngineOptions(threads=1, n_ctx=512)) as engine:
        found = verify(engine, plan=plan("coupled"))
    assert found.problems == ()
    assert {arm.drafter for arm in found.conformance.arms} == {"always wrong", "wrong in turn", "text"}
    assert {cache.model for cache in found.cache.findings} == {"target"}


def test_the_engine_answers_as_before_afterwards(tiny_target: Path, tiny_draft: Path) -> None:
    options = EngineOptions(threads=1, n_ctx=512, draft_length=4)
    with load(tiny_target, draft=tiny_draft, options=options) as engine:
        before = engine.generate("hello", raw=True, sampling=OPEN)
        verify(engine, plan=plan("coupled"))
        after = engine.generate("hello", raw=True, sampling=OPEN)
    assert after.token_ids == before.token_ids
    assert after.statistics.rounds == before.statistics.rounds


def test_a_request_to_stop_is_heard(tiny_target: Path) -> None:
    asked = count()
    with load(tiny_target, draft="text", options=EngineOptions(threads=1, n_ctx=512, draft_length=4)) as engine:
        with pytest.raises(Aborted):
            verify(engine, plan=plan("coupled"), cancelled=lambda: next(asked) > 20)
        assert engine.generate("hello", raw=True, sampling=OPEN).finish_reason == "length"


def test_the_table_of_a_failure_names_the_cause_last(
    check: Callable[[str], Verification], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_one_too_many(monkeypatch)
    lines = table(check("coupled")).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("FAILED"))
    assert "a cache does not hold the text" in lines[at]
    assert all(line.startswith("  ") for line in lines[at + 1 :])
