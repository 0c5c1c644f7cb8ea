"""The model picker: pairs, targets and drafts, with the reason beside each draft that cannot draft for a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from spec_local.errors import SpecLocalError
from spec_local.models_manifest import show_bytes
from spec_local.ui.dialogs import Heading, Hint
from spec_local.ui.finder import Finder
from spec_local.ui.tones import DIM, GOOD
from spec_local.ui.visible import visible

if TYPE_CHECKING:
    from spec_local.models_manifest import Header, ListedModel, Pair


@dataclass(frozen=True, slots=True)
class Choice:
    """What to load."""

    target: str | None
    draft: str
    pair: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the picker."""

    label: str
    note: str
    choice: Choice | None
    """None: it cannot be chosen."""
    target: str = ""
    """Set on a line that goes on to the choice of a draft."""
    heading: bool = False
    """It names the lines below it."""


class ModelLists:
    """What there is to choose from. Reads the catalogue and headers, so it is asked outside the screen's task."""

    def __init__(self) -> None:
        from spec_local.models_manifest import list_models, load_catalogue

        catalogue = load_catalogue()
        self._models: list[ListedModel] = list_models()
        self._pairs: list[Pair] = list(catalogue.pairs)
        self._headers: dict[Path, Header | SpecLocalError] = {}

    def targets(self) -> list[Row]:
        """What can run at once comes first: pairs, then single models; then what would have to be fetched."""
        present = {m.entry.name for m in self._models if m.entry and m.path}
        pairs: tuple[list[Row], list[Row]] = ([], [])
        for pair in self._pairs:
            here = pair.target in present and pair.draft in present
            note = f"drafted by {pair.draft}"
            pairs[not here].append(Row(pair.name, note, Choice(None, "auto", pair.name)))
        models: tuple[list[Row], list[Row]] = ([], [])
        for model in self._models:
            size = show_bytes(model.bytes) if model.bytes else ""
            models[model.path is None].append(Row(model.name, size, Choice(model.name, "auto"), target=model.name))
        found: list[Row] = []
        for title, rows in (
            ("Pairs on this machine", pairs[0]),
            ("Models on this machine", models[0]),
            ("Pairs to fetch", pairs[1]),
            ("Models to fetch", models[1]),
        ):
            found += [Row(title, "", None, heading=True), *rows] if rows else []
        return found

    def drafts(self, target: str) -> list[Row]:
        """Ways to draft for a target; a model that does not fit is there with its reason."""
        rows = [
            Row("automatic", "the draft the catalogue pairs with it, and text", Choice(target, "auto")),
            Row("text", "drafts from what the conversation repeats", Choice(target, "text")),
            Row("none", "plain decoding", Choice(target, "none")),
        ]
        ours = next((m for m in self._models if m.name == target), None)
        for model in self._models:
            if model.name == target:
                continue
            if ours is None or ours.path is None or model.path is None:
                if model.path is not None or self._paired(ours, model):
                    rows.append(
                        Row(model.name, "to be fetched" if model.path is None else "", Choice(target, model.name))
                    )
                continue
            reason = self.refusal(ours.path, model.path)
            rows.append(Row(model.name, reason, None if reason else Choice(target, model.name)))
        return rows

    def refusal(self, target: Path, draft: Path) -> str:
        """Why this draft cannot draft for this target; empty where it can."""
        from spec_local.models_manifest import check_pair

        headers = [self._header(target), self._header(draft)]
        for header in headers:
            if isinstance(header, SpecLocalError):
                return header.message
        report = check_pair(*headers)  # type: ignore[arg-type]
        return "" if report.ok else report.reason

    def _header(self, path: Path) -> Header | SpecLocalError:
        from spec_local.models_manifest import read_header

        if path not in self._headers:
            try:
                self._headers[path] = read_header(path)
            except SpecLocalError as error:
                self._headers[path] = error
        return self._headers[path]

    def _paired(self, target: ListedModel | None, draft: ListedModel) -> bool:
        names = (target.entry.name if target and target.entry else "", draft.entry.name if draft.entry else "")
        return any((pair.target, pair.draft) == names for pair in self._pairs)


class ModelPicker(ModalScreen["Choice | None"]):
    """First what to run, then what drafts for it; both narrowed by what is typed.

    Args:
        make_lists: Reads what there is.
        loaded: Names of what is loaded now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "back", "Back")]

    def __init__(self, make_lists: Callable[[], ModelLists] = ModelLists, loaded: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self._make_lists = make_lists
        self._loaded = loaded
        self._lists: ModelLists | None = None
        self._rows: Sequence[Row] = ()
        self._shown: Sequence[Row] = ()
        self._target = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -tall"):
            yield Heading("What shall run?")
            yield Finder("", _NARROW)
            yield Hint("Enter chooses · ↑ ↓ move · Esc goes back")

    def on_mount(self) -> None:
        self.query_one(Finder).show([(Content.styled("looking at what is here …", DIM), False)])
        self._list_targets()

    def action_back(self) -> None:
        """To the targets, or out."""
        if self._target:
            self._target = ""
            self._list_targets()
        else:
            self.dismiss(None)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _list_targets(self) -> None:
        try:
            self._lists = self._lists or self._make_lists()
            rows = self._lists.targets()
        except SpecLocalError as error:
            rows = [Row(error.message, error.hint, None)]
        self.app.call_from_thread(self._show, "What shall run?", rows)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _list_drafts(self, target: str) -> None:
        assert self._lists is not None
        self.app.call_from_thread(self._show, f"What shall draft for {target}?", self._lists.drafts(target))

    def _show(self, title: str, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.query_one(Heading).say(title)
        self.query_one(Finder).ask_for(_NARROW)
        self._narrow("")

    def on_finder_sought(self, event: Finder.Sought) -> None:
        self._narrow(event.text)

    def _narrow(self, text: str) -> None:
        self._shown = shown = narrowed(self._rows, text)
        column = max((cell_len(row.label) for row in shown if row.choice is not None), default=0)
        lines = [(_row_line(row, min(column, _WIDEST_NAME), row.label in self._loaded), _can_be(row)) for row in shown]
        at = next((i for i, row in enumerate(shown) if _can_be(row) and row.label in self._loaded), None)
        nothing = [(Content.styled("Nothing has that in its name.", DIM), False)]
        self.query_one(Finder).show(lines or nothing, None if self._target else at)

    def on_finder_chosen(self, event: Finder.Chosen) -> None:
        row = self._shown[event.index] if event.index < len(self._shown) else None
        if row is None or row.choice is None:
            return
        if row.target:
            self._target = row.target
            self._list_drafts(row.target)
        else:
            self.dismiss(row.choice)


_NARROW = "Type to narrow"
_WIDEST_NAME = 36


def _can_be(row: Row) -> bool:
    return row.choice is not None


def narrowed(rows: Sequence[Row], text: str) -> list[Row]:
    """The rows that hold all words of `text`, in any case, under the headings that still have some."""
    words = text.casefold().split()
    found: list[Row] = []
    for row in rows:
        if row.heading or all(word in f"{row.label} {row.note}".casefold() for word in words):
            if row.heading and found and found[-1].heading:
                found.pop()
            found.append(row)
    return found[:-1] if found and found[-1].heading else found


def _row_line(row: Row, column: int, loaded: bool) -> Content:
    if row.heading:
        return Content.styled(row.label, "bold $text-primary")
    mark = Content.styled("● ", GOOD) if loaded else Content("  ")
    line = mark + visible(row.label)
    if not row.note:
        return line
    if row.choice is None:  # a reason is a sentence, and needs its room
        return line + Content.styled(f"\n    {visible(row.note)}", DIM)
    space = " " * max(2, column + 4 - line.cell_length)
    return line + space + Content.styled(visible(row.note), DIM)
