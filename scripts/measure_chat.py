"""What the chat costs: decoding with its screen against decoding without, on the same engine, prompt and seed.

    python scripts/measure_chat.py [-m NAME] [-d NAME] [--threads N] [--tokens N] [--repeats N]

Runs alternate, so that a machine that slows down slows both. Prints tokens/s of each run and the ratio of the medians,
and ends with one line of JSON. The figure wanted is at least 0.95.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics

from spec_local.sampling.params import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions
from spec_local.session.store import IN_MEMORY, Store
from spec_local.ui.app import ChatApp

PROMPT = "Write a Python class for a stack, with push, pop and peek, then explain each method in a few sentences."


def without(engine: Engine, sampling: Sampling) -> float:
    """Tokens/s of a run that nobody looks at."""
    return engine.generate([{"role": "user", "content": PROMPT}], sampling=sampling).statistics.tokens_per_s or 0.0


async def with_screen(engine: Engine, sampling: Sampling) -> float:
    """Tokens/s of the same run in the chat, at 120×40 with the panel."""

    class Kept:
        """The engine, which outlives the application."""

        def __getattr__(self, name: str) -> object:
            return getattr(engine, name)

        def close(self) -> None:
            """Nothing: it is needed again."""

    app = ChatApp(lambda: (engine.options, sampling), Store(IN_MEMORY), loader=lambda *_: Kept())  # type: ignore[arg-type]
    async with app.run_test(size=(120, 40)) as pilot:
        while app.dialogue.facts is None:
            await pilot.pause(0.02)
        app.composer.load_whole(PROMPT)
        await pilot.press("enter")
        while len(app.transcript.turns) < 2 or app.dialogue.busy:
            await asyncio.sleep(0.05)
        return app.transcript.turns[-1].figures.statistics.tokens_per_s or 0.0


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--target")
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    options = EngineOptions(target=arguments.target, draft=arguments.draft, threads=arguments.threads)
    sampling = Sampling(seed=7, max_tokens=arguments.tokens, min_tokens=arguments.tokens)
    plain, screen = [], []
    with load(options=options, draft=arguments.draft) as engine:
        without(engine, sampling)  # warm-up
        for _ in range(arguments.repeats):
            plain.append(without(engine, sampling))
            screen.append(asyncio.run(with_screen(engine, sampling)))
            print(f"without {plain[-1]:6.1f} tokens/s   with {screen[-1]:6.1f} tokens/s", flush=True)
    ratio = statistics.median(screen) / statistics.median(plain)
    print(json.dumps({"without": plain, "with": screen, "ratio": round(ratio, 3)}))


if __name__ == "__main__":
    main()
