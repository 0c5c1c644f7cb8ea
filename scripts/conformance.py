"""The long conformance run: with every pass padded to one width, every arm must give plain decoding's tokens.

    python scripts/conformance.py [-m TARGET] [-d DRAFT] [--tokens N] [--seeds N] [--prompts N] [--width N] ...

A pass of one row and a pass of many go through different kernels, so their logits differ in the last bits and a
near-tie may fall the other way. Padded to one width the kernels are the same, and there is no excuse for a difference.
Arms: the draft model with drafts of 1, 4 and 7 tokens, text drafts, a drafter that is always wrong, one that is wrong
at every place in turn, and plain decoding; greedy, and at temperature 0.8 with several seeds. `spec-local verify` runs
such arms on short answers, on its own caches; here answers are long and come through the whole engine.

The full matrix on the default pair takes an hour on two quiet older cores; `--first-prompt` does it in
parts. Prints a line for each arm and, last, one JSON object; the exit code is 1 where an arm differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spec_local.drafting.draft import MODEL_SOURCE
from spec_local.drafting.token_cache import common_prefix
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions
from spec_local.session.result import Result
from spec_local.speculation.controller import FixedController
from spec_local.verify.conformance import CONTENDERS, Arms, contender

PROMPTS = (
    "Write a Python function that checks whether a number is prime.",
    "Translate to French, then to German: The old bridge was closed because of the flood.",
    'Repeat this line three times, numbered: {"name": "Ada", "likes": ["engines", "numbers"]}',
)


@dataclass(frozen=True, slots=True)
class Arm:
    """One answer that was compared with plain decoding's."""

    prompt: int
    temperature: float
    seed: int
    drafter: str
    length: int
    tokens: int
    """Tokens plain decoding wrote."""
    identical: bool
    """Every token is plain decoding's, there is none more or less, and the text and its end are the same."""
    agrees: int
    """Tokens up to the first difference."""
    tokens_per_pass: float
    acceptance_rate: float | None

    def line(self) -> str:
        """For a person."""
        rate = "" if self.acceptance_rate is None else f", {self.acceptance_rate:.0%} accepted"
        setting = f"prompt {self.prompt} T {self.temperature:g} seed {self.seed} {self.drafter} {self.length}"
        outcome = "identical" if self.identical else f"DIFFERS at token {self.agrees + 1}"
        return f"{setting}: {outcome} ({self.tokens} tokens, {self.tokens_per_pass:.2f} per pass{rate})"


def run(engine: Engine, prompts: Sequence[str], settings: Sequence[Sampling], arms: Arms) -> Iterator[Arm]:
    """Answer every prompt under every setting plainly and with every arm, from an empty cache each time.

    Args:
        engine: Loaded with `pad_width`; its drafters and controller are exchanged, and put back.
        prompts: Users' texts.
        settings: Sampling with seed and max_tokens.
        arms: Drafters with their draft lengths; "model" only where the engine has one.
    """
    speculator = engine.speculator
    drafters, controller = dict(speculator.drafters), speculator.controller
    for number, prompt in enumerate(prompts):
        for sampling in settings:
            plain = _answer(engine, prompt, sampling, speculate=False)
            tokens = [*engine.tokenize(Request(prompt))[0], *plain.token_ids]
            for name, length in arms:
                speculator.drafters.clear()
                drafter = contender(name, drafters.get(MODEL_SOURCE), tokens, engine.vocabulary.size, length)
                assert drafter is not None, "there is an arm for every drafter there is"
                speculator.drafters[name] = drafter
                speculator.controller = FixedController(name, length)
                answer = _answer(engine, prompt, sampling)
                yield Arm(
                    prompt=number,
                    temperature=sampling.temperature,
                    seed=sampling.seed or 0,
                    drafter=name,
                    length=length,
                    tokens=len(plain.token_ids),
                    identical=_end(answer) == _end(plain),
                    agrees=common_prefix(plain.token_ids, answer.token_ids),
                    tokens_per_pass=answer.statistics.tokens_per_pass or 0.0,
                    acceptance_rate=answer.statistics.acceptance_rate,
                )
    speculator.drafters.clear()
    speculator.drafters.update(drafters)
    speculator.controller = controller


def _answer(engine: Engine, prompt: str, sampling: Sampling, speculate: bool = True) -> Result:
    engine.speculator.release(0)
    return engine.generate(prompt, sampling=sampling, speculate=speculate)


def _end(result: Result) -> tuple[object, ...]:
    return result.token_ids, result.text, result.finish_reason, result.limit


def settings(seeds: int, tokens: int) -> list[Sampling]:
    """Greedy, and temperature 0.8 with several seeds."""
    greedy = Sampling(temperature=0.0, seed=0, max_tokens=tokens)
    warm = [Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.0, seed=s, max_tokens=tokens) for s in range(seeds)]
    return [greedy, *warm]


def main() -> int:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--first-prompt", type=int, default=0, help="to do the matrix in parts")
    parser.add_argument("--drafters", default=",".join(CONTENDERS), help="comma-separated")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()

    width = arguments.width
    options = EngineOptions(n_ctx=1024, pad_width=width, draft_length=width - 1, threads=arguments.threads)
    done: list[Arm] = []
    with load(arguments.target, draft=arguments.draft, options=options) as engine:
        lengths = sorted({1, width // 2, width - 1})
        arms = [(MODEL_SOURCE, length) for length in lengths if MODEL_SOURCE in engine.speculator.drafters]
        arms += [(name, width - 1) for name in CONTENDERS if name != MODEL_SOURCE]
        arms = [arm for arm in arms if arm[0] in arguments.drafters.split(",")]
        first = arguments.first_prompt
        prompts = PROMPTS[first : first + arguments.prompts]
        for arm in run(engine, prompts, settings(arguments.seeds, arguments.tokens), tuple(arms)):
            print(arm.line(), flush=True)
            done.append(arm)
        model = engine.describe()
    different = [arm.line() for arm in done if not arm.identical]
    report = {"arms": len(done), "identical": len(done) - len(different), "different": different, "model": model}
    print(json.dumps(report))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
