"""The model picker: pairs, targets and drafts, with the reason beside each draft that cannot draft for a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from spec_local.errors import SpecLocalError
from spec_local.ui.dialogs import FAINT, Heading, Hint
from spec_local.ui.figures import megabytes
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


class ModelLists:
    """What there is to choose from. Reads the catalogue and headers, so it is asked outside the screen's task."""

    def __init__(self) -> None:
        from spec_local.models_manifest import list_models, load_catalogue

        catalogue = load_catalogue()
        self._models: list[ListedModel] = list_models()
        self._pairs: list[Pair] = list(catalogue.pairs)
        self._headers: dict[Path, Header | SpecLocalError] = {}

    def targets(self) -> list[Row]:
        """Pairs first, then every model."""
        here = {m.entry.name for m in self._models if m.entry and m.path}
        rows = []
        for pair in self._pairs:
            missing = any(name not in here for name in (pair.target, pair.draft))
            note = f"with {pair.draft}" + (" · to be fetched" if missing else "")
            rows.append(Row(pair.name, note, Choice(None, "auto", pair.name)))
        for model in self._models:
            size = megabytes(model.bytes) if model.bytes else ""
            note = " · ".join(part for part in (size, "" if model.path else "to be fetched") if part)
            rows.append(Row(model.name, note, Choice(model.name, "auto"), target=model.name))
        return rows

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
    """First what to run, then what drafts for it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "back", "Back")]

    def __init__(self, make_lists: Callable[[], ModelLists] = ModelLists) -> None:
        super().__init__()
        self._make_lists = make_lists
        self._lists: ModelLists | None = None
        self._rows: Sequence[Row] = ()
        self._target = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -tall"):
            yield Heading("What shall run?")
            yield OptionList(Option(Content.styled("looking at what is here …", FAINT), disabled=True), compact=True)
            yield Hint("Enter chooses · Esc goes back")

    def on_mount(self) -> None:
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
        heading = self.query_one(Heading)
        heading._text = title
        heading.changed()
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(_row_line(row), disabled=row.choice is None) for row in rows])
        options.highlighted = next((i for i, row in enumerate(rows) if row.choice is not None), None)
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        row = self._rows[event.option_index]
        if row.target:
            self._target = row.target
            self._list_drafts(row.target)
        elif row.choice is not None:
            self.dismiss(row.choice)


def _row_line(row: Row) -> Content:
    line = Content(visible(row.label))
    return line + Content.styled(f"\n  {visible(row.note)}", FAINT) if row.note else line
