"""Runs in the comparison's own virtual environment: one llama.cpp server with one setting, asked through pipes.

Started with one JSON argument; answers `{"ready": ...}`, then one line for each request line. A request line that is a
list is answered all at once, as far as there are slots. Everything llama.cpp itself prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def make_server(wanted: dict[str, Any]) -> Any:
    """A server with this setting; raises what xllamacpp raises."""
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = wanted["target"]
    params.n_ctx = wanted["n_ctx"] * wanted["slots"]
    params.n_parallel = wanted["slots"]
    params.fit_params = False
    params.cache_ram_mib = 0
    params.verbosity = 1
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = wanted["threads"]
    kinds = xllamacpp.common_speculative_type
    speculative = params.speculative
    speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name.upper()}") for name in wanted["types"]]
    if "draft_simple" in wanted["types"]:
        draft = speculative.draft
        draft.mparams.path = wanted["draft"]
        draft.n_max = wanted["n_max"]
        draft.p_min = wanted["p_min"]
        draft.probabilistic = wanted["probabilistic"]
        for threads in (draft.cpuparams, draft.cpuparams_batch):
            threads.n_threads = wanted["threads"]
    for kind, values in wanted["ngram"].items():
        for name, value in values.items():
            setattr(getattr(speculative, kind), name, value)
    return xllamacpp.Server(params)


def answer(server: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One completion: its text and llama.cpp's own timings."""
    started = time.perf_counter()
    result = server.handle_completions(request)
    wall_s = time.perf_counter() - started
    if isinstance(result, str | bytes):
        result = json.loads(result)
    if "timings" not in result:
        return {"error": json.dumps(result)[:500]}
    return {"text": result["choices"][0]["text"], "timings": result["timings"], "wall_s": wall_s}


def answer_all(server: Any, requests: list[dict[str, Any]], slots: int) -> dict[str, Any]:
    """Many completions, `slots` at a time, and the wall time of all of them."""
    started = time.perf_counter()
    with ThreadPoolExecutor(slots) as pool:
        answers = list(pool.map(lambda request: answer(server, request), requests))
    errors = [each["error"] for each in answers if "error" in each]
    return {"error": errors[0]} if errors else {"answers": answers, "wall_s": time.perf_counter() - started}


def main() -> None:
    """Load, then answer until standard input ends."""
    wanted = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the library prints must not mix with the replies

    def reply(value: dict[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    started = time.perf_counter()
    try:
        server = make_server(wanted)
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    reply({"ready": time.perf_counter() - started})
    for line in sys.stdin:
        try:
            request = json.loads(line)
            several = isinstance(request, list)
            reply(answer_all(server, request, wanted["slots"]) if several else answer(server, request))
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
