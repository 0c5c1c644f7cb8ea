"""What the chat costs: decoding with its screen against decoding without, on the same engine, prompt and seed.

    python scripts/measure_chat.py [-m NAME] [-d NAME] [--threads N] [--tokens N] [--repeats N]

Both ways are timed alike, by the clock on the wall, from the first piece that the engine hands over to the last: what
happens between two rounds (saving, drawing, waiting for the interpreter) is part of the cost. Runs come in pairs, the
one or the other first in turn, so that a machine that slows down slows both; the figure is the median of the pairs'
ratios, beside the ratio of the two best runs. The speculation controller is not in play: `--draft-length` fixes what is
drafted, so that both ways do the same passes, which is checked.

On a machine that others use as well those speeds scatter. So the processor time that the screen takes is measured, too,
which they change little: that of its own thread, and that of saving and handing over in the engine's thread. As a share
of the time that the answer took it is the most that the screen can cost where decoding keeps every core busy. Ends with
one line of JSON; at most 5 % is wanted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from spec_local.sampling.params import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.result import Piece
from spec_local.session.store import IN_MEMORY, Store
from spec_local.session.stream import Stream
from spec_local.ui.app import ChatApp

PROMPT = "Write a Python class for a stack, with push, pop and peek, then explain each method in a few sentences."
_SWITCH_S = sys.getswitchinterval()


@dataclass(frozen=True, slots=True)
class Run:
    """One answer."""

    tokens_per_s: float
    """After the first piece, by the clock on the wall."""
    passes: tuple[tuple[int, int], ...]
    """(drafted, emitted) of every round."""
    seconds: float
    """From the first piece to the last."""
    taking_s: float
    """Processor time of what took the pieces, in the engine's thread."""
    screen_s: float = 0.0
    """Processor time of the screen's thread meanwhile."""


class Timed:
    """A stream that notes when its pieces are taken."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._times: list[float] = []
        self._emitted: list[int] = []
        self._taking_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Piece]:
        for piece in self._stream:
            self._times.append(time.perf_counter())
            self._emitted.append(len(piece.tokens))
            begin = time.thread_time()
            yield piece
            self._taking_s += time.thread_time() - begin

    def run(self) -> Run:
        """What it amounted to."""
        seconds = self._times[-1] - self._times[0]
        passes = tuple((r.drafted, r.emitted) for r in self._stream.result.rounds)
        return Run(sum(self._emitted[1:]) / seconds, passes, seconds, self._taking_s)


class TimedEngine:
    """The engine, with timed streams. It outlives the application."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.last: Timed | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def stream(self, *arguments: Any, **options: Any) -> Timed:
        """As the engine's."""
        self.last = Timed(self._engine.stream(*arguments, **options))
        return self.last

    def close(self) -> None:
        """Nothing: it is needed again."""


def without(engine: TimedEngine, sampling: Sampling) -> Run:
    """A run that nobody looks at."""
    sys.setswitchinterval(_SWITCH_S)  # as in a program that has no screen; the application sets its own
    stream = engine.stream([{"role": "user", "content": PROMPT}], sampling=sampling)
    for _ in stream:
        pass
    return stream.run()


async def with_screen(engine: TimedEngine, options: EngineOptions, sampling: Sampling) -> Run:
    """The same run in the chat, at 120×40 with the panel."""
    kept = cast(Any, engine)
    app = ChatApp(lambda: (options, sampling, ReplyOptions()), Store(IN_MEMORY), loader=lambda *_: kept)
    async with app.run_test(size=(120, 40)) as pilot:
        while app.dialogue.facts is None:
            await pilot.pause(0.02)
        app.composer.load_whole(PROMPT)
        await pilot.press("enter")
        while len(app.transcript.turns) < 2 or not app.transcript.turns[-1].text:
            await asyncio.sleep(0.01)
        begin = time.thread_time()  # of this thread: the screen's
        while app.dialogue.busy:
            await asyncio.sleep(0.05)
        await pilot.pause()
        screen_s = time.thread_time() - begin
    assert engine.last is not None
    return replace(engine.last.run(), screen_s=screen_s)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--target")
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--draft-length", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=6)
    arguments = parser.parse_args()
    options = EngineOptions(
        target=arguments.target,
        draft=arguments.draft,
        threads=arguments.threads,
        draft_length=arguments.draft_length,
    )
    sampling = Sampling(seed=7, max_tokens=arguments.tokens, min_tokens=arguments.tokens)
    ratios, plain, screen, used = [], [], [], []
    with load(arguments.target, draft=arguments.draft, options=options) as loaded:
        engine = TimedEngine(loaded)
        # Warm-up, of the caches as well: every run then finds the prompt there.
        without(engine, sampling)
        asyncio.run(with_screen(engine, options, sampling.model_copy(update={"max_tokens": 8, "min_tokens": 0})))
        for number in range(arguments.repeats):
            first_with = asyncio.run(with_screen(engine, options, sampling)) if number % 2 else None
            alone = without(engine, sampling)
            seen = first_with or asyncio.run(with_screen(engine, options, sampling))
            assert alone.passes == seen.passes, "the two ways did not do the same passes"
            plain.append(round(alone.tokens_per_s, 2))
            screen.append(round(seen.tokens_per_s, 2))
            ratios.append(round(seen.tokens_per_s / alone.tokens_per_s, 3))
            used.append(round((seen.screen_s + seen.taking_s - alone.taking_s) / seen.seconds, 4))
            print(
                f"without {plain[-1]:6.1f}   with {screen[-1]:6.1f} tokens/s   {ratios[-1]:.3f}   {used[-1]:.1%}",
                flush=True,
            )
    ratio, best = statistics.median(ratios), round(max(screen) / max(plain), 3)
    print(f"decoding with the screen runs at {ratio:.3f} of its speed without, at {best:.3f} in the best runs")
    share = statistics.median(used)
    print(f"the screen takes {share:.1%} of a core's time while an answer is written; at most 5 % is wanted")
    figures = {"without": plain, "with": screen, "ratio": round(ratio, 3), "best": best, "shares": used, "share": share}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
