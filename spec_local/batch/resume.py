"""Which old answers still stand, and which lines are left to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spec_local.batch.output import OldRecord, OutputFile
from spec_local.batch.records import BadLine, Id, Item
from spec_local.batch.requests import changed_parts

_MOST_NOTES = 20


@dataclass(slots=True)
class Resumption:
    """What a resumed run begins with."""

    kept: list[OldRecord] = field(default_factory=list)
    """Old records that stay, in their order."""
    done: set[int] = field(default_factory=set)
    """Input lines they answer."""
    changed: int = 0
    """Old answers to something that has changed since, done again."""
    orphans: int = 0
    """Old answers to lines the input no longer has; kept."""
    notes: list[str] = field(default_factory=list)
    """For the person."""


def plan_resumption(
    output: OutputFile,
    items: Iterable[Item | BadLine],
    fingerprint: Callable[[Item], str],
    retry_cut: bool = False,
) -> Resumption:
    """Compare an output file with the input; nothing is changed yet (`output.keep(resumption.kept)` does that).

    An item is recognised by its id, or without one by its line number, and its answer stands while its fingerprint is
    the same. Where an id occurs several times, each of its items takes an answer of its own. With `retry_cut`, answers
    that ended before their schema or grammar was complete are done again.
    """
    plan = Resumption()
    old: dict[Id | tuple[int], list[OldRecord]] = {}
    order: list[OldRecord] = []
    for record in output.records():
        if not record.finished or (retry_cut and record.cut):  # a failure, done again
            continue
        order.append(record)
        old.setdefault(_key(record.id, record.line), []).append(record)

    wanted: set[Id | tuple[int]] = set()
    standing: set[int] = set()  # offsets
    for item in items:
        key = _key(item.id, item.line)
        wanted.add(key)
        candidates = [r for r in old.get(key, ()) if r.offset not in standing]
        if isinstance(item, BadLine) or not candidates:
            continue
        mark = fingerprint(item)
        same = [r for r in candidates if r.fingerprint == mark]
        if same:
            chosen = next((r for r in same if r.line == item.line), same[0])
            standing.add(chosen.offset)
            plan.done.add(item.line)
        else:
            plan.changed += 1
            _note(plan, item, changed_parts(candidates[0].fingerprint, mark))
    for record in order:
        orphan = _key(record.id, record.line) not in wanted
        plan.orphans += orphan
        if orphan or record.offset in standing:
            plan.kept.append(record)
    if plan.changed > _MOST_NOTES:
        plan.notes.append(f"{plan.changed - _MOST_NOTES} further items have changed and are answered again.")
    if plan.orphans:
        plan.notes.append(f"{plan.orphans} old answers belong to lines the input no longer has; they are kept.")
    return plan


def _key(item_id: Id, line: int) -> Id | tuple[int]:
    return (line,) if item_id is None else item_id


def _note(plan: Resumption, item: Item, what: str) -> None:
    if plan.changed <= _MOST_NOTES:
        name = f"Line {item.line}" if item.id is None else f"{item.id!r} (line {item.line})"
        plan.notes.append(f"{name} is answered again: its {what} has changed.")
