"""Answers under ten JSON schemas with every kind of draft: valid, equal to plain decoding, and what speculation gains.

    python scripts/structured_answers.py -m TARGET -d DRAFT --count 200 --pad-width 17

Half of the answers are greedy, half are drawn at temperature 0.8. Prints a line for each arm and, last, one JSON
object; the exit code is 1 where an answer that ended is not valid, or differs from plain decoding under `--pad-width`.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jsonschema

from spec_local.sampling import Sampling
from spec_local.session.engine import load
from spec_local.session.options import EngineOptions
from spec_local.session.structured import json_schema
from spec_local.speculation.statistics import Tally

NAME = {"type": "string", "minLength": 1, "maxLength": 24}


def record(**properties: Any) -> dict[str, Any]:
    """Schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "person": ("Invent a person.", record(name=NAME, age={"type": "integer", "minimum": 0, "maximum": 120})),
    "colours": ("Name some colours.", {"type": "array", "items": NAME, "minItems": 2, "maxItems": 4}),
    "verdict": ("Is water wet?", record(answer={"enum": ["yes", "no"]}, sure={"type": "boolean"})),
    "point": ("Give a point in the plane.", record(x={"type": "number"}, y={"type": "number"})),
    "book": ("Describe a book.", record(title=NAME, author=record(first=NAME, last=NAME), year={"type": "integer"})),
    "rating": ("Rate a good meal.", record(stars={"type": "integer", "minimum": 1, "maximum": 5}, comment=NAME)),
    "date": (
        "When did the first man walk on the moon?",
        record(date={"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}),
    ),
    "maybe": ("Name a pet, or nothing.", {"anyOf": [record(pet=NAME), {"type": "null"}]}),
    "matrix": (
        "Give a matrix of two rows and two columns.",
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    "tags": (
        "Tag a holiday photo.",
        record(tags={"type": "array", "items": {"enum": ["sea", "sun", "city"]}, "maxItems": 3}),
    ),
}


def main() -> int:
    """Measure every arm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--target", required=True)
    parser.add_argument("-d", "--draft", help="draft model; without one the arm is left out")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--draft-length", default="auto")
    parser.add_argument("--n-ctx", type=int, default=512)
    parser.add_argument("--pad-width", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    length = arguments.draft_length
    options = EngineOptions(
        n_ctx=arguments.n_ctx,
        pad_width=arguments.pad_width,
        threads=arguments.threads,
        draft_length="auto" if length == "auto" else int(length),
    )
    structures = {name: json_schema(schema) for name, (_, schema) in SCHEMAS.items()}
    names = list(SCHEMAS)
    table: list[dict[str, Any]] = []
    first: list[tuple[int, ...]] = []
    for draft in ["none", "text", *([arguments.draft] if arguments.draft else [])]:
        tally, valid, ended, answers = Tally(), 0, 0, list[tuple[int, ...]]()
        with load(arguments.target, draft=draft, options=options) as engine:
            engine.generate("Hello", sampling=Sampling(max_tokens=2), structure=structures["person"])  # warm
            started = time.perf_counter()
            for i in range(arguments.count):
                name = names[i % len(names)]
                warm = i // len(names) % 2 == 1  # every schema at both temperatures
                sampling = Sampling(temperature=0.8 if warm else 0.0, seed=i, max_tokens=arguments.max_tokens)
                prompt = f"{SCHEMAS[name][0]} Answer in JSON. ({i // len(names)})"
                result = engine.generate(prompt, sampling=sampling, structure=structures[name])
                tally.add(result.rounds)
                answers.append(result.token_ids)
                if result.finish_reason == "stop":
                    ended += 1
                    try:
                        jsonschema.validate(json.loads(result.text), SCHEMAS[name][1])
                        valid += 1
                    except (ValueError, jsonschema.ValidationError) as error:
                        print(f"INVALID {name}: {result.text!r}: {error}")
            seconds = time.perf_counter() - started
        first = first or answers
        figures = tally.statistics()
        arm = {
            "draft": draft,
            "answers": arguments.count,
            "ended": ended,
            "valid": valid,
            "equal": sum(a == b for a, b in zip(answers, first, strict=True)),
            "tokens": figures.emitted,
            "decode_tokens_per_s": figures.tokens_per_s,
            "tokens_per_pass": figures.tokens_per_pass,
            "host_ms_per_token": 1000 * figures.host_s / max(1, figures.emitted),
            "seconds": seconds,
            "sources": {name: (s.tested, s.accepted) for name, s in figures.sources.items()},
        }
        table.append(arm)
        print(
            f"{draft[-40:]:>40}: {valid} of {ended} ended answers valid ({arguments.count} in all), "
            f"{arm['equal']} equal to plain, {figures.tokens_per_s or 0:.1f} tokens/s, "
            f"{figures.tokens_per_pass or 0:.2f} tokens per pass, {arm['sources']}",
            flush=True,
        )
    print(json.dumps(table))
    wrong = any(arm["valid"] < arm["ended"] for arm in table)
    differs = bool(arguments.pad_width) and any(arm["equal"] < arguments.count for arm in table)
    return int(wrong or differs)


if __name__ == "__main__":
    raise SystemExit(main())
