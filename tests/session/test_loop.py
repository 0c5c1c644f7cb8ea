"""The loop: who is answered when, who is cancelled, who fails, and what is done between two passes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from batch_engines import ScriptedEngine, recited

from spec_local.errors import BackendError, UsageError
from spec_local.session.generation import Event, Finished, Generation, Progress, Request
from spec_local.session.loop import Ticket
from spec_local.session.result import Piece


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(per_step=4, slots=2) as engine:
        yield engine


def ask(engine: ScriptedEngine, prompt: str) -> tuple[Ticket, list[Event]]:
    heard: list[Event] = []
    return engine.loop.submit(engine.prepare(Request(prompt)), heard.append), heard


def play(engine: ScriptedEngine, steps: int = 1000) -> None:
    while steps and engine.loop.step():
        steps -= 1


def text(heard: list[Event]) -> str:
    return "".join(event.text for event in heard if isinstance(event, Piece))


def test_more_requests_than_slots_are_answered_in_the_order_they_came(engine: ScriptedEngine) -> None:
    asked = [ask(engine, prompt) for prompt in ("one", "two", "three", "four", "five")]
    play(engine)
    assert [text(heard) for _, heard in asked] == [recited(Request(p)) for p in ("one", "two", "three", "four", "five")]
    assert all(isinstance(heard[-1], Finished) for _, heard in asked)
    assert max(map(len, engine.steps)) == 2
    assert not engine.loop.step(), "nothing is left"


def test_one_is_cancelled_and_the_other_goes_on(engine: ScriptedEngine) -> None:
    (victim, heard), (_, other) = ask(engine, "FOREVER"), ask(engine, "a longer question than the first")
    play(engine, 3)
    victim.cancel()
    assert not engine.cancelled, "somebody else is in the pass"
    play(engine)
    assert victim.generation.sequence.finish == "cancelled"
    assert text(heard) and isinstance(heard[-1], Finished)
    assert text(other) == recited(Request("a longer question than the first"))
    victim.cancel()


def test_a_request_that_waits_can_be_cancelled(engine: ScriptedEngine) -> None:
    ask(engine, "FOREVER"), ask(engine, "FOREVER")
    waiting, heard = ask(engine, "third")
    play(engine, 1)
    waiting.cancel()
    play(engine, 1)
    assert [type(event) for event in heard] == [Finished]
    assert waiting.generation.sequence.slot == -1


def test_the_pass_of_one_alone_is_stopped_at_once() -> None:
    """From another thread, in the middle of a pass."""
    inside, stopped = threading.Event(), threading.Event()

    class Slow(ScriptedEngine):
        def step(self, sequences: Any) -> None:
            inside.set()
            assert stopped.wait(10), "the pass was stopped"
            super().step(sequences)

        def abort(self, stop: bool) -> None:
            super().abort(stop)
            if stop:
                stopped.set()

    with Slow() as engine:
        ticket, _ = ask(engine, "FOREVER")
        engine.loop.start()
        inside.wait(10)
        ticket.cancel()
        engine.loop.call(lambda: None).result(10)
        assert ticket.generation.sequence.finish == "cancelled"


def test_what_fails_for_all_is_tried_alone_and_the_others_lose_nothing(engine: ScriptedEngine) -> None:
    (bad, _), (_, heard) = ask(engine, "EXPLODE"), ask(engine, "a good question")
    play(engine)
    assert isinstance(bad.generation.sequence.error, BackendError)
    assert text(heard) == recited(Request("a good question"))


def test_a_defect_in_a_pass_is_an_error_of_its_requests(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(_sequences: Any) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(engine, "step", defect)
    ticket, _ = ask(engine, "x")
    play(engine)
    assert "KeyError" in str(ticket.generation.sequence.error)


def test_a_defect_between_passes_leaves_nobody_waiting(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(_slot: int, _tokens: Any) -> int:
        raise KeyError("a defect")

    monkeypatch.setattr(engine, "shared", defect)
    ended = threading.Event()
    ticket = engine.loop.submit(
        engine.prepare(Request("x")), lambda event: ended.set() if isinstance(event, Finished) else None
    )
    engine.loop.start()
    assert ended.wait(10)
    assert "KeyError" in str(ticket.generation.sequence.error)


def test_who_listens_badly_loses_his_own_request(engine: ScriptedEngine) -> None:
    def deaf(_event: Event) -> None:
        raise RuntimeError("the screen is gone")

    ticket = engine.loop.submit(engine.prepare(Request("FOREVER")), deaf)
    _, heard = ask(engine, "a good question")
    play(engine)
    assert ticket.generation.sequence.finish == "cancelled"
    assert text(heard) == recited(Request("a good question"))


def test_calls_are_made_between_passes_and_raise_where_they_were_asked(engine: ScriptedEngine) -> None:
    ask(engine, "a question")
    steps = engine.loop.call(lambda: len(engine.steps))
    failed = engine.loop.call(lambda: 1 // 0)
    play(engine, 1)
    with pytest.raises(ZeroDivisionError):
        failed.result(0)
    assert steps.result(0) == 0
    engine.loop.start()
    assert engine.loop.call(threading.get_ident).result(10) != threading.get_ident()


def test_progress_is_told_while_a_prompt_is_read() -> None:
    class Reading(ScriptedEngine):
        def step(self, sequences: Any) -> None:
            reading = sequences[0].reading
            if reading.computed < 30:
                reading.begun, reading.lacking, reading.computed = True, 30, reading.computed + 10
            else:
                reading.done = True
                super().step(sequences)

    with Reading() as engine:
        _, heard = ask(engine, "x")
        play(engine)
        assert heard[:3] == [Progress(10, 30), Progress(20, 30), Progress(30, 30)]
        assert sum(isinstance(event, Progress) for event in heard) == 3


def test_closing_ends_everybody_and_refuses_the_next(engine: ScriptedEngine) -> None:
    asked = [ask(engine, "FOREVER") for _ in range(3)]
    engine.loop.start()
    engine.loop.close()
    engine.loop.close()
    assert [ticket.generation.sequence.finish for ticket, _ in asked] == ["cancelled"] * 3
    assert all(isinstance(heard[-1], Finished) for _, heard in asked)
    for refused in (lambda: ask(engine, "x"), engine.loop.start, lambda: engine.loop.call(lambda: None)):
        with pytest.raises(UsageError, match="closed"):
            refused()


def test_a_conversation_keeps_its_slot_and_a_side_request_takes_another() -> None:
    """By the longest shared beginning, unless most of what the slot holds would be lost; else the one idle longest."""
    held: dict[int, list[int]] = {0: [], 1: [], 2: []}

    class Caches(ScriptedEngine):
        def shared(self, slot: int, tokens: Any) -> int:
            pairs = zip(held[slot], tokens, strict=False)
            return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(held[slot]), len(tokens)))

        def held(self, slot: int) -> int:
            return len(held[slot])

        def step(self, sequences: Any) -> None:
            super().step(sequences)
            for sequence in sequences:
                held[sequence.slot] = list(sequence.tokens)

    system = "You are helpful. "
    with Caches(slots=3) as engine:

        def slot(prompt: str) -> int:
            ticket, _ = ask(engine, prompt)
            play(engine)
            return ticket.generation.sequence.slot

        talk = system + "Tell me a long story about a river and its bridges."
        first = slot(talk)
        other = slot(system + "Title?")
        assert other != first, "it only begins like the conversation"
        answer = recited(Request(talk))
        assert slot(talk + answer + " And then?") == first, "it goes on with it"
        third = slot("something else altogether")
        assert third not in (first, other), "the one nobody was in"
        assert slot("yet another thing") == other, "the one that was used longest ago"


def test_a_generation_tells_what_the_cache_held(engine: ScriptedEngine) -> None:
    generation: Generation = engine.prepare(Request("abcdef"))
    assert generation.cached_tokens == 0, "nothing is known yet"
    generation.sequence.reading.begun, generation.sequence.reading.lacking = True, 2
    assert generation.cached_tokens == 3


_IN_MAIN_HEAP = """
import ctypes, threading
from spec_local.session.loop import _share_one_heap
_share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
found = []
thread = threading.Thread(target=lambda: found.extend(libc.malloc(1000) for _ in range(20)))
thread.start()
thread.join()
lines = [line.split() for line in open("/proc/self/maps")]
heap = next(line[0] for line in lines if line[-1] == "[heap]")
low, high = (int(end, 16) for end in heap.split("-"))
print(all(low <= at < high for at in found))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no heap for each thread")
def test_the_loops_thread_takes_memory_from_the_main_heap():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", _IN_MAIN_HEAP], env=environment, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
