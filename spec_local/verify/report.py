"""A verification as a table for people."""

from __future__ import annotations

from typing import Any

from spec_local.verify.findings import culprit
from spec_local.verify.verify import Verification


def table(found: Verification) -> str:
    """All checks, a line for each thing that was looked at, and the verdict last."""
    model = found.model
    draft = model["draft"] or "no draft model"
    lines = [f"{model['target']} + {draft}, acceptance rule {found.rule}"]
    lines += [f"Kernels: {_kernels(model['kernels'])}", f"Numbers: {found.numerics.sentence()}", ""]
    for title, rows in (
        (f"Conformance: all passes {found.conformance.pad_width} rows wide", _conformance(found)),
        ("Audit: ordinary runs replayed one token at a time", _audit(found)),
        ("Distribution: do emitted tokens follow the target?", _distribution(found)),
        ("Cache: what the caches hold after an answer", _cache(found)),
    ):
        lines += [title, *_aligned(rows), ""]
    return "\n".join([*lines, *_verdict(found)])


def _kernels(described: dict[str, Any]) -> str:
    if not described["on"]:
        return f"llama.cpp's, since spec-local's own are off: {described['reason']}"
    formats = "; ".join(f"{kind} at {widths} rows" for kind, widths in described["formats"].items())
    return f"spec-local's own ({described['instructions']}) for {formats}; llama.cpp's for the rest"


def _conformance(found: Verification) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for arm in found.conformance.arms:
        passes = f"{arm.tokens} tokens, {arm.rounds} passes" if arm.rounds else f"{arm.tokens} tokens"
        accepted = f"{arm.accepted}/{arm.tested} accepted" if arm.tested else "nothing drafted"
        if arm.failure is not None:
            outcome = "BROKE OFF"
        elif (d := arm.difference) is not None:
            outcome = (
                f"DIFFERS at token {d.index + 1}: {d.speculative_text}, plain {d.plain_text}, margin {d.margin:.3g}"
            )
        else:
            outcome = "identical"
        rows.append((arm.name, passes, accepted, outcome))
    return rows


def _audit(found: Verification) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for run in found.audit.replays:
        if run.decided:
            many = f"{len(run.disagreements)} disagreements"
            worst = max((d.margin for d in run.disagreements), default=None)
            near = "" if worst is None else f"largest margin {worst:.3g}"
        else:
            many, near = "not decided one by one", "tested by its distribution"
        rows.append((run.name, f"{run.tokens} tokens, {run.rounds} passes", many, f"ε {run.target.epsilon:.2g}", near))
    figures = found.audit.as_dict()
    if figures["tokens"]:
        rate, close = figures["disagreements_per_1000"], figures["close_calls"]
        rows.append(("together", f"{figures['tokens']} tokens", f"{rate:.1f} disagreements per 1000",
                     f"ε {found.audit.epsilon:.2g}", f"{close} decisions within 2ε"))  # fmt: skip
    return rows


def _distribution(found: Verification) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for test in found.distribution.tests:
        outcome = "ok" if test.p_value >= found.distribution.level else "FAILS"
        power = "" if test.detects is None else f"shows a total variation of {test.detects:.3f}"
        rows.append((test.name, f"{test.samples} samples", f"p = {test.p_value:.3g}", outcome, power))
    if not rows:
        rows.append(("nothing was drawn above temperature 0",))
    if (distance := found.distribution.draft_row_distance) is not None:
        rows.append(("draft rows against a fresh draft cache", f"total variation {distance:.3f}"))
    return rows


def _cache(found: Verification) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for cache in found.cache.findings:
        apart = ["-" if value is None else f"{value:.2g}" for value in (cache.difference, cache.batch_difference)]
        narrow = f"Δlogit {apart[0]} from a fresh cache (≤ {cache.tolerance:.2g})"
        batch = f"{apart[1]} from one batch (≤ {cache.batch_tolerance:.2g})"
        held = f"holds {cache.held} of {cache.expected} tokens"
        rows.append((f"{cache.run}: {cache.model}", held, narrow, batch))
    return rows


def _verdict(found: Verification) -> list[str]:
    if found.passed:
        return [f"PASSED in {found.seconds:.0f} s: speculation gives what the target gives, up to rounding (ε) here."]
    kind = culprit(list(found.problems))
    assert kind is not None
    lines = [f"FAILED in {found.seconds:.0f} s. Most likely cause: {kind.words}."]
    return lines + [f"  {problem.check}: {problem.message}" for problem in found.problems]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines with columns, indented."""
    columns = max((len(row) for row in rows), default=0)
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(columns)]
    return ["  " + "  ".join(f"{cell:<{widths[i]}}" for i, cell in enumerate(row)).rstrip() for row in rows]
