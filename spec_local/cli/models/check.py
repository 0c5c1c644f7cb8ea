"""`models check`: whether a draft fits a target, from both headers, with nothing loaded."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.main import print_error
from spec_local.cli.models.advice import faster_draft
from spec_local.cli.models.output import print_json
from spec_local.errors import PairError, UsageError
from spec_local.models_manifest import PairReport, check_pair, load_catalogue, read_header, resolve_model
from spec_local.words import harmless


def run_check(arguments: Any) -> int:
    """Compare two vocabularies; exit 3 where the draft does not fit."""
    target_name, draft_name = _names(arguments)
    target, draft = resolve_model(target_name), resolve_model(draft_name)
    draft_header = read_header(draft.path)
    report = check_pair(read_header(target.path), draft_header)
    advice = faster_draft(draft_header, draft.name, draft.entry) if report.ok else ""
    if arguments.json:
        print_json({"target": target.name, "draft": draft.name, **_as_dict(report), "advice": advice or None})
    elif report.ok:
        print(harmless(f"{draft.name} can draft for {target.name}."))
        print(_vocabulary(report))
        for note in filter(None, (*report.notes, advice)):
            print(harmless(note))
    else:
        print_error(PairError(report.message, report.hint))
    return ExitCode.OK if report.ok else ExitCode.MODEL


def _vocabulary(report: PairReport) -> str:
    """A line on how much of each vocabulary is shared."""
    shared = report.shared
    assert shared is not None, "a pair that fits has a vocabulary"
    if not shared.same_ids:
        return harmless(report.other_vocabulary)
    sizes = {report.target_vocab, report.draft_vocab}
    entries = f"{report.target_vocab} entries each" if len(sizes) == 1 else f"{report.common} entries in common"
    return f"Vocabulary: {entries}, the same text and kind for every one that is used. Shared: {shared.figures}."


def _names(arguments: Any) -> tuple[str, str]:
    if arguments.pair is not None:
        if arguments.target is not None:
            raise UsageError("A pair and two models cannot both be checked.", "Give TARGET DRAFT, or --pair NAME.")
        pair = load_catalogue().pair(arguments.pair)
        return pair.target, pair.draft
    if arguments.target is None or arguments.draft is None:
        raise UsageError("There are not two models to check.", "Give TARGET DRAFT, or --pair NAME.")
    return arguments.target, arguments.draft


def _as_dict(report: PairReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "target_path": str(report.target),
        "draft_path": str(report.draft),
        "target_vocab": report.target_vocab,
        "draft_vocab": report.draft_vocab,
        "common": report.common,
        "shared": None if report.shared is None else report.shared.as_dict(),
        "first_difference": None if report.first_difference is None else asdict(report.first_difference),
        "reason": report.reason or None,
        "hint": report.hint or None,
        "notes": [*report.notes],
    }
